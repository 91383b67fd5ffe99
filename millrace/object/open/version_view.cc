#include "millrace/object/open/version_view.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/requests/in_flight.h"
#include "millrace/object/support/read_only_store.h"

namespace millrace::object {
namespace {

/// Versions by key, as the latest listings had them: those who list a tree read it next. Bounded: two generations of at
/// most kMost names. Thread-safe.
class RecentVersions {
 public:
  void Add(const std::string& key, const std::string& id) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (young_.size() >= kMost) old_ = std::exchange(young_, {});
    young_.insert_or_assign(key, id);
  }
  std::optional<std::string> Find(const std::string& key) const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const auto* generation : {&young_, &old_}) {
      if (const auto found = generation->find(key); found != generation->end()) return found->second;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kMost = 8192;  // eight pages of a listing
  mutable Mutex mutex_;
  std::map<std::string, std::string> young_ MR_GUARDED_BY(mutex_), old_ MR_GUARDED_BY(mutex_);
};

/// A place in a listing of versions, as the continuation of a listing.
struct VersionPlace {
  std::string key, version;  ///< the markers of the next page
  std::string decided;       ///< the last key whose version is known

  std::string ToText() const { return DumpJson(Json::array({key, version, decided})); }
  static Result<VersionPlace> Parse(const std::string& text) {
    const Json json = MR_TRY(ParseJson(text, "the continuation of a listing"));
    const bool good = json.is_array() && json.size() == 3 &&
                      std::ranges::all_of(json, [](const Json& part) { return part.is_string(); });
    if (!good) {
      return Fail(Code::kInvalidArgument, "the listing has another continuation than {}; start the listing again",
                  text);
    }
    return VersionPlace{json[0].get<std::string>(), json[1].get<std::string>(), json[2].get<std::string>()};
  }
};

/// A store whose reads choose a version first. Derived classes choose.
class VersionView : public ReadOnlyStore {
 public:
  explicit VersionView(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  std::string Describe() const override { return inner_->Describe(); }

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override {
    WithVersion<ObjectInfo>(std::move(key), std::move(call), std::move(done),
                            [this](std::string of, std::string id, Call inner_call, auto then) {
                              inner_->HeadVersion(std::move(of), std::move(id), std::move(inner_call), std::move(then));
                            });
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    WithVersion<GetResult>(
        std::move(key), std::move(call), std::move(done),
        [this, options = std::move(options), into](std::string of, std::string id, Call inner_call, auto then) mutable {
          options.version = std::move(id);
          inner_->Get(std::move(of), std::move(options), into, std::move(inner_call), std::move(then));
        });
  }
  void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override {
    WithVersion<GetResult>(std::move(key), std::move(call), std::move(done),
                           [this, options = std::move(options), limit, &sink](std::string of, std::string id,
                                                                              Call inner_call, auto then) mutable {
                             options.version = std::move(id);
                             inner_->GetTo(std::move(of), std::move(options), limit, sink, std::move(inner_call),
                                           std::move(then));
                           });
  }
  Result<std::string> Presign(std::string_view, std::string_view, Duration) override {
    return Fail(Code::kUnsupported, "{}: no URLs are signed for old versions", Describe());
  }

 protected:
  /// Yields the id of the version of `key` that the view shows; nullopt if it shows none.
  virtual void Choose(std::string key, Call call, Done<std::optional<std::string>> done) = 0;

  /// Makes the call one of this store's, whose destruction cancels it and waits for it.
  template <class T>
  Done<T> Begin(Call& call, Done<T> done) {
    auto ticket = in_flight_.Begin(call.stop);
    call.stop = ticket->token();
    return [ticket = std::move(ticket), done = std::move(done)](Result<T> result) mutable {
      done(std::move(result));
      ticket.reset();  // after this, the store may be destroyed
    };
  }
  Store& inner() { return *inner_; }
  const Store& inner() const { return *inner_; }
  /// Cancels all calls and waits for them. Destructors of derived classes call it: completions use their members.
  void EndCalls() { in_flight_.CancelAll(); }

  Error WriteRefusal(const std::string& key) const override {
    return Error(Code::kReadOnly, fmt::format("{}/{}: old versions are only read", Describe(), key));
  }

 private:
  static ObjectInfo& InfoOf(ObjectInfo& info) { return info; }
  static ObjectInfo& InfoOf(GetResult& got) { return got.info; }

  template <class T, class Read>
  void WithVersion(std::string key, Call call, Done<std::optional<T>> done, Read read) {
    done = Begin(call, std::move(done));
    std::string of = key;
    Choose(std::move(of), call,
           [key = std::move(key), call, done = std::move(done),
            read = std::move(read)](Result<std::optional<std::string>> id) mutable {
             if (!id) return done(Fail(id.error()));
             if (!*id) return done(std::nullopt);
             std::string version = **id;
             read(std::move(key), std::move(version), std::move(call),
                  [id = **std::move(id), done = std::move(done)](Result<std::optional<T>> result) mutable {
                    if (result && *result) InfoOf(**result).version = std::move(id);
                    done(std::move(result));
                  });
           });
  }

  const std::shared_ptr<Store> inner_;
  s3::InFlight in_flight_;
};

class OneVersion final : public VersionView {
 public:
  OneVersion(std::shared_ptr<Store> inner, VersionName name) : VersionView(std::move(inner)), name_(std::move(name)) {}
  ~OneVersion() override { EndCalls(); }

  std::string Identity() const override { return fmt::format("{}?version={}", inner().Identity(), name_.id); }
  void List(ListRequest, Call, Done<ListPage> done) override {
    done(Fail(Code::kUnsupported, "a version is of one object; to list old objects, say as of when"));
  }

 protected:
  void Choose(std::string key, Call, Done<std::optional<std::string>> done) override {
    done(key == name_.key ? std::optional(name_.id) : std::nullopt);
  }

 private:
  const VersionName name_;
};

class AsOf final : public VersionView {
 public:
  AsOf(std::shared_ptr<Store> inner, WallTime at) : VersionView(std::move(inner)), at_(at) {}
  ~AsOf() override { EndCalls(); }

  std::string Identity() const override { return fmt::format("{}?at={}", inner().Identity(), FormatIso8601(at_)); }

  void List(ListRequest request, Call call, Done<ListPage> done) override {
    VersionPlace from{.key = request.start_after, .version = "", .decided = ""};
    if (!request.continuation.empty()) {
      auto place = VersionPlace::Parse(request.continuation);
      if (!place) return done(Fail(place.error()));
      from = *std::move(place);
    }
    VersionsRequest versions{.prefix = std::move(request.prefix),
                             .delimiter = std::move(request.delimiter),
                             .key_marker = std::move(from.key),
                             .version_marker = std::move(from.version)};
    done = Begin(call, std::move(done));
    inner().ListVersions(std::move(versions), std::move(call),
                         [this, start_after = std::move(request.start_after), decided = std::move(from.decided),
                          done = std::move(done)](Result<VersionsPage> page) mutable {
                           if (!page) return done(Fail(page.error()));
                           done(PageOf(*std::move(page), start_after, std::move(decided)));
                         });
  }

 protected:
  void Choose(std::string key, Call call, Done<std::optional<std::string>> done) override {
    if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
    if (auto known = recent_.Find(key)) return done(std::move(known));
    VersionsRequest request{.prefix = key};
    Search(std::move(key), std::move(request), std::move(call), std::move(done));
  }

 private:
  ListPage PageOf(VersionsPage versions, const std::string& start_after, std::string decided) {
    ListPage page;
    for (VersionInfo& version : versions.versions) {
      ObjectInfo& info = version.info;
      if (info.key <= start_after || info.key == decided || info.modified > at_) continue;
      decided = info.key;
      if (version.deletion) continue;
      recent_.Add(info.key, version.id);
      info.version = std::move(version.id);
      page.objects.push_back(std::move(info));
    }
    page.common_prefixes = std::move(versions.common_prefixes);
    std::erase_if(page.common_prefixes, [&](const std::string& prefix) { return prefix <= start_after; });
    if (!versions.next_key.empty()) {
      page.continuation =
          VersionPlace{std::move(versions.next_key), std::move(versions.next_version), std::move(decided)}.ToText();
    }
    return page;
  }

  /// Looks for the version of `key` in the pages from `request` on.
  void Search(std::string key, VersionsRequest request, Call call, Done<std::optional<std::string>> done) {
    VersionsRequest next = request;
    Call inner_call = call;
    inner().ListVersions(std::move(request), std::move(inner_call),
                         [this, key = std::move(key), next = std::move(next), call = std::move(call),
                          done = std::move(done)](Result<VersionsPage> page) mutable {
                           if (!page) return done(Fail(page.error()));
                           for (VersionInfo& version : page->versions) {
                             if (version.info.key != key || version.info.modified > at_) continue;
                             if (version.deletion) return done(std::nullopt);
                             recent_.Add(key, version.id);
                             return done(std::move(version.id));
                           }
                           if (page->next_key != key) return done(std::nullopt);
                           next.key_marker = std::move(page->next_key);
                           next.version_marker = std::move(page->next_version);
                           Search(std::move(key), std::move(next), std::move(call), std::move(done));
                         });
  }

  const WallTime at_;
  RecentVersions recent_;
};

}  // namespace

std::shared_ptr<Store> ViewAsOf(std::shared_ptr<Store> store, WallTime at) {
  return std::make_shared<AsOf>(std::move(store), at);
}

std::shared_ptr<Store> ViewVersion(std::shared_ptr<Store> store, VersionName name) {
  return std::make_shared<OneVersion>(std::move(store), std::move(name));
}

}  // namespace millrace::object
