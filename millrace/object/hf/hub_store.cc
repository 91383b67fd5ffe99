#include "millrace/object/hf/hub_store.h"

#include <algorithm>
#include <future>
#include <set>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/object/rules.h"
#include "millrace/object/support/listing.h"

namespace millrace::object::hf {
namespace {

/// The hub's storage signs addresses for an hour. A part that asks the storage at once saves the hub a request, and the
/// hub limits requests.
constexpr Duration kRedirectLife = std::chrono::minutes(5);
constexpr std::size_t kMaxKnownRedirects = 1000;  // about a megabyte

ObjectInfo InfoOf(const HubFile& file, WallTime time) {
  ObjectInfo info{.key = file.path, .size = file.size, .etag = file.hash, .modified = time};
  info.checksum.algorithm = file.is_large ? Checksum::Algorithm::kSha256 : Checksum::Algorithm::kGitBlob;
  info.checksum.value = AsText(HexDecode(file.hash).value_or(std::vector<std::byte>()));
  return info;
}

/// As a listing has it.
ObjectInfo ListedInfo(const HubFile& file, WallTime time) {
  return {.key = file.path, .size = file.size, .etag = file.hash, .modified = time};
}

Status CheckContent(const HubFile& file, ByteSpan content) {
  Hasher hasher(file.is_large ? Hasher::Algorithm::kSha256 : Hasher::Algorithm::kSha1);
  if (!file.is_large) {
    const std::string head = fmt::format("blob {}", content.size());
    hasher.Update(AsBytes(std::string_view(head.c_str(), head.size() + 1)));  // with its NUL byte
  }
  hasher.Update(content);
  if (HexEncode(hasher.Finish()) == file.hash) return {};
  return Fail(Code::kCorrupt, "the bytes do not have the hash that the hub has for them");
}

/// Checks that this is the response to a request for `range` of the file.
Status CheckRange(const http::Response& response, const HubFile& file, const ByteRange& range) {
  const bool whole = range.length == file.size;
  if (response.status != 206 && !whole) return Fail(Code::kUnsupported, "the hub ignores ranges");
  const std::string expected = fmt::format("bytes {}-{}/{}", range.offset, range.offset + range.length - 1, file.size);
  if (response.status == 206 && response.headers.Get("content-range") != expected) {
    return Fail(Code::kCorrupt, "the answer has the range {:?}, not {:?}",
                response.headers.Get("content-range").substr(0, 80), expected);
  }
  if (response.received == range.length) return {};
  return Fail(Code::kCorrupt, "the answer has {} bytes where {} were asked for", response.received, range.length);
}

/// Passes a response body to a Sink, if the headers say that it has the range that was asked for. The check of the
/// whole answer reports a wrong range.
class RangeSink final : public http::BodySink {
 public:
  RangeSink(Sink& sink, std::uint64_t from, ObjectInfo info) : sink_(sink), from_(from), info_(std::move(info)) {}
  void Begin(const http::Headers& headers) override {
    const std::string_view range = headers.Get("content-range");
    has_range_ = range.empty() ? from_ == 0 : range.starts_with(fmt::format("bytes {}-", from_));
    if (has_range_) sink_.Begin(info_);
  }
  Status Take(std::uint64_t offset, ByteSpan bytes) override {
    return has_range_ ? sink_.Take(from_ + offset, bytes) : Status();
  }

 private:
  Sink& sink_;
  const std::uint64_t from_;
  const ObjectInfo info_;
  bool has_range_ = true;
};

/// The URL of the next page, from `<https://…>; rel="next"`; empty on the last page.
std::string NextPage(std::string_view link) {
  const std::size_t relation = link.find("rel=\"next\"");
  if (relation == link.npos) return "";
  const std::size_t begin = link.rfind('<', relation), end = link.find('>', begin == link.npos ? 0 : begin);
  if (begin == link.npos || end == link.npos || end > relation) return "";
  return std::string(link.substr(begin + 1, end - begin - 1));
}

/// Makes a page of a listing, which has at least the files that the request is about.
Result<ListPage> PageOf(const Listing& listing, const ListRequest& request, WallTime time) {
  PageBuilder page = MR_TRY(PageBuilder::Start(request));
  auto first = [&] { return std::ranges::lower_bound(listing, page.start(), {}, &HubFile::path); };
  for (auto at = first(); at != listing.end();) {
    switch (page.Offer(ListedInfo(*at, time))) {
      case PageBuilder::Next::kTaken:
        ++at;
        break;
      case PageBuilder::Next::kSkip:
        at = first();
        break;
      case PageBuilder::Next::kDone:
        return page.TakePage();
    }
  }
  return page.TakePage();
}

}  // namespace

HubStore::HubStore(std::shared_ptr<HubClient> client, Repository repository)
    : client_(std::move(client)), repository_(std::move(repository)) {}

std::string HubStore::Identity() const {
  return fmt::format("hf://{}/{}", client_->settings().Authority(), repository_.text);
}

template <class T>
Done<T> HubStore::Begin(Call& call, Done<T> done) {
  auto ticket = in_flight_.Begin(call.stop);
  call.stop = ticket->token();
  return [ticket = std::move(ticket), done = std::move(done)](Result<T> result) mutable {
    done(std::move(result));
    ticket.reset();  // after this, the store may be destroyed
  };
}

void HubStore::WithCommit(Call call, std::move_only_function<void(Result<Commit>)> then) {
  if (Status on = CheckCall(call, client_->clock()); !on) return then(Fail(on.error()));
  {
    MutexLock lock(mutex_);
    if (commit_) {
      Commit known = *commit_;
      lock.Unlock();
      return then(std::move(known));
    }
  }
  // Calls that come before the first answer each ask. The first answer counts for all.
  HubRequest request{.repository = &repository_, .about = Describe(), .url = repository_.RevisionCall()};
  client_->Run(std::move(request), std::move(call), [this, then = std::move(then)](HubOutcome outcome) mutable {
    if (!outcome.response) return then(Fail(outcome.response.error()));
    auto parse = [&]() -> Result<Commit> {
      const Json info = MR_TRY(ParseJson(outcome.response->body, "the description of " + Describe()));
      Commit commit{.sha = MR_TRY(JsonString(info, "sha"))};
      const Json* time = JsonFind(info, "lastModified");
      if (time && time->is_string()) commit.time = ParseIso8601(time->get<std::string>()).value_or(WallTime());
      return commit;
    };
    auto commit = parse();
    if (!commit) {
      return then(Fail(commit.error()
                           .Context(Describe() + ": the answer is not one of the hub's; check HF_ENDPOINT")
                           .WithCode(Code::kUnavailable)));
    }
    {
      MutexLock lock(mutex_);
      if (!commit_) commit_ = *std::move(commit);
      commit = *commit_;
    }
    then(std::move(commit));
  });
}

Result<std::string> HubStore::ReadCommit(Call call) {
  std::promise<Result<std::string>> answer;
  WithCommit(std::move(call), [&answer](Result<Commit> commit) {
    answer.set_value(commit ? Result<std::string>(std::move(commit->sha)) : Fail(commit.error()));
  });
  return answer.get_future().get();
}

void HubStore::WithFile(std::string key, Call call, std::move_only_function<void(Result<KnownFiles::Answer>)> then) {
  if (Status good = CheckKey(key); !good) return then(Fail(good.error()));
  if (Status on = CheckCall(call, client_->clock()); !on) return then(Fail(on.error()));
  if (auto known = known_.FindFile(key)) return then(*std::move(known));
  auto ask = [this, key = std::move(key), call, then = std::move(then)](Result<Commit> commit) mutable {
    if (!commit) return then(Fail(commit.error()));
    if (!IsTreePath(key)) return then(KnownFiles::Answer());
    HubRequest request{.repository = &repository_,
                       .about = NameOf(key),
                       .method = "POST",
                       .url = repository_.PathsCall(commit->sha),
                       .body = fmt::format("paths={}&expand=false", PercentEncode(key, /*keep_slash=*/false))};
    request.headers.Set("Content-Type", "application/x-www-form-urlencoded");
    client_->Run(std::move(request), std::move(call),
                 [this, key = std::move(key), then = std::move(then)](HubOutcome outcome) mutable {
                   if (!outcome.response && !outcome.no_entry) return then(Fail(outcome.response.error()));
                   auto files = outcome.response ? ParseHubFiles(outcome.response->body) : std::vector<HubFile>();
                   if (!files) return then(Fail(files.error().Context(NameOf(key))));
                   KnownFiles::Answer answer;
                   for (HubFile& file : *files) {
                     if (file.path == key) answer = std::move(file);
                   }
                   known_.KeepFile(key, answer);
                   then(std::move(answer));
                 });
  };
  WithCommit(std::move(call), std::move(ask));
}

/// A listing under way.
struct HubStore::PageWalk {
  ListingScope scope;
  Call call;
  Done<std::shared_ptr<const Listing>> then;
  std::vector<HubFile> files;
  std::set<std::string> seen = {};  ///< addresses of pages
};

void HubStore::WithListing(ListingScope scope, Call call, Done<std::shared_ptr<const Listing>> then) {
  if (auto known = known_.Find(scope)) return then(std::move(known));
  WithCommit(call, [this, scope = std::move(scope), call, then = std::move(then)](Result<Commit> commit) mutable {
    if (!commit) return then(Fail(commit.error()));
    if (!scope.folder.empty() && !IsTreePath(scope.folder)) return then(std::make_shared<const Listing>());
    std::string url = repository_.TreeCall(commit->sha, scope.folder, scope.recursive);
    auto walk = std::make_unique<PageWalk>(std::move(scope), std::move(call), std::move(then));
    ReadPages(std::move(walk), std::move(url));
  });
}

void HubStore::ReadPages(std::unique_ptr<PageWalk> walk, std::string url) {
  HubRequest request{.repository = &repository_, .about = NameOf(walk->scope.folder), .url = std::move(url)};
  Call call = walk->call;
  client_->Run(std::move(request), std::move(call), [this, walk = std::move(walk)](HubOutcome outcome) mutable {
    if (outcome.no_entry) return walk->then(known_.Keep(walk->scope, {}));
    if (!outcome.response) return walk->then(Fail(outcome.response.error()));
    auto files = ParseHubFiles(outcome.response->body);
    if (!files) return walk->then(Fail(files.error().Context(NameOf(walk->scope.folder))));
    std::ranges::move(*files, std::back_inserter(walk->files));
    std::string next = NextPage(outcome.response->headers.Get("link"));
    if (next.empty()) return walk->then(known_.Keep(walk->scope, std::move(walk->files)));
    if (files->empty() || !walk->seen.insert(next).second) {
      return walk->then(Fail(Code::kCorrupt, "{}: the list of files does not end", Describe()));
    }
    ReadPages(std::move(walk), std::move(next));
  });
}

void HubStore::Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) {
  done = Begin(call, std::move(done));
  WithFile(std::move(key), call, [this, call, done = std::move(done)](Result<KnownFiles::Answer> file) mutable {
    if (!file) return done(Fail(file.error()));
    if (!*file) return done(std::nullopt);
    WithCommit(std::move(call), [file = **std::move(file), done = std::move(done)](Result<Commit> commit) mutable {
      if (!commit) return done(Fail(commit.error()));
      done(InfoOf(file, commit->time));
    });
  });
}

void HubStore::List(ListRequest request, Call call, Done<ListPage> done) {
  done = Begin(call, std::move(done));
  if (auto valid = PageBuilder::Start(request); !valid) return done(Fail(valid.error()));
  const std::size_t slash = request.prefix.rfind('/');
  ListingScope scope{.folder = request.prefix.substr(0, slash == request.prefix.npos ? 0 : slash),
                     .recursive = request.delimiter.empty()};
  WithCommit(call, [this, scope = std::move(scope), request = std::move(request), call,
                    done = std::move(done)](Result<Commit> commit) mutable {
    if (!commit) return done(Fail(commit.error()));
    WithListing(std::move(scope), std::move(call),
                [request = std::move(request), time = commit->time,
                 done = std::move(done)](Result<std::shared_ptr<const Listing>> listing) mutable {
                  if (!listing) return done(Fail(listing.error()));
                  done(PageOf(**listing, request, time));
                });
  });
}

void HubStore::Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
                   Done<std::optional<GetResult>> done) {
  done = Begin(call, std::move(done));
  Read(std::move(key), std::move(options), {.into = into, .room = into.size()}, std::move(call), std::move(done));
}

void HubStore::GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                     Done<std::optional<GetResult>> done) {
  done = Begin(call, std::move(done));
  Read(std::move(key), std::move(options), {.sink = &sink, .room = limit}, std::move(call), std::move(done));
}

void HubStore::Read(std::string key, GetOptions options, Target target, Call call,
                    Done<std::optional<GetResult>> done) {
  auto found = [this, options = std::move(options), target, call,
                done = std::move(done)](Result<KnownFiles::Answer> answer) mutable {
    if (!answer) return done(Fail(answer.error()));
    if (!*answer) return done(std::nullopt);
    HubFile file = **std::move(answer);
    if (!options.if_match.empty() && options.if_match != file.hash) {
      return done(Fail(Code::kPreconditionFailed, "{} has the hash {}; it has changed: read it again from the start",
                       NameOf(file.path), file.hash));
    }
    auto range = FitRange(options.range, file.size, target.room);
    if (!range) return done(Fail(range.error()));
    WithCommit(call, [this, file = std::move(file), range = *range, target, call,
                      done = std::move(done)](Result<Commit> commit) mutable {
      if (!commit) return done(Fail(commit.error()));
      if (range.length == 0) return done(GetResult{.info = InfoOf(file, commit->time)});
      Fetch(*commit, std::move(file), range, target, std::move(call), std::move(done));
    });
  };
  WithFile(std::move(key), call, std::move(found));
}

void HubStore::Fetch(const Commit& commit, HubFile file, ByteRange range, Target target, Call call,
                     Done<std::optional<GetResult>> done) {
  HubRequest request{.repository = &repository_,
                     .about = NameOf(file.path),
                     .url = repository_.File(commit.sha, file.path),
                     .redirected = RedirectOf(file.path)};
  request.headers.Set("Accept-Encoding", "identity");  // the hash and the ranges are of the file as it is
  const bool whole = range.length == file.size;
  if (!whole) request.headers.Set("Range", fmt::format("bytes={}-{}", range.offset, range.offset + range.length - 1));
  ObjectInfo info = InfoOf(file, commit.time);
  std::unique_ptr<RangeSink> sink;
  const MutableByteSpan into = target.sink ? MutableByteSpan() : target.into.first(range.length);
  if (target.sink) {
    sink = std::make_unique<RangeSink>(*target.sink, range.offset, info);
    request.target.sink = sink.get();
    request.target.sink_limit = range.length;
  } else {
    request.target.into = into;
  }
  request.check = [file, range, into, check_content = whole && !target.sink](const http::Response& response) -> Status {
    MR_TRY(CheckRange(response, file, range));
    return check_content ? CheckContent(file, into) : Status();
  };
  client_->Run(std::move(request), std::move(call),
               [this, info = std::move(info), length = range.length, sink = std::move(sink),
                done = std::move(done)](HubOutcome outcome) mutable {
                 if (outcome.no_entry) return done(std::nullopt);
                 if (!outcome.response) return done(Fail(outcome.response.error()));
                 KeepRedirect(info.key, std::move(outcome.redirected));
                 done(GetResult{.bytes = length, .info = std::move(info)});
               });
}

std::string HubStore::RedirectOf(const std::string& key) {
  MutexLock lock(mutex_);
  auto found = redirects_.find(key);
  return found == redirects_.end() || found->second.until < client_->clock().Now() ? "" : found->second.url;
}

void HubStore::KeepRedirect(const std::string& key, std::string url) {
  if (url.empty()) return;
  MutexLock lock(mutex_);
  if (redirects_.size() >= kMaxKnownRedirects) redirects_.clear();
  Redirect& kept = redirects_[key];
  if (kept.url == url) return;  // its life began when the hub gave it
  kept = {std::move(url), client_->clock().Now() + kRedirectLife};
}

Error HubStore::WriteRefusal(const std::string& key) const {
  return Error(
      Code::kReadOnly,
      fmt::format("{}: the hub is only read from; write to a bucket (s3://bucket/…) or to a folder", NameOf(key)));
}

Result<std::string> HubStore::Presign(std::string_view, std::string_view, Duration) {
  return Fail(Code::kUnsupported, "{}: the hub gives no addresses to pass on", Describe());
}

}  // namespace millrace::object::hf
