#include "millrace/object/open/open.h"

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::object {
namespace {

/// The first character of a continuation: the listing of a bucket starts from its beginning, or the bucket's own
/// continuation follows.
constexpr std::string_view kFromStart = "*", kContinued = "=";

struct BucketKey {
  std::string bucket, key;
};

/// Splits "bucket/key". A path without a slash has no bucket.
BucketKey Split(std::string_view path) {
  const auto slash = path.find('/');
  if (slash == std::string_view::npos) return {"", std::string(path)};
  return {std::string(path.substr(0, slash)), std::string(path.substr(slash + 1))};
}

template <class T>
Result<T> Refusal(const std::string& path) {
  return Fail(Code::kPermissionDenied,
              "{}: at the top there are buckets, which `millrace mb` makes and `millrace rb` removes", path);
}

void Prepend(const std::string& bucket, ListPage& page) {
  for (ObjectInfo& object : page.objects) object.key = bucket + "/" + object.key;
  for (std::string& prefix : page.common_prefixes) prefix = bucket + "/" + prefix;
  if (!page.continuation.empty()) page.continuation = std::string(kContinued) + page.continuation;
}

class AllBuckets final : public Store {
 public:
  AllBuckets(Connection& connection, std::shared_ptr<Service> service)
      : connection_(connection), service_(std::move(service)) {}

  std::string Describe() const override { return "s3://"; }

  std::string Identity() const override { return service_->Identity(); }

  void Head(std::string path, Call call, Done<std::optional<ObjectInfo>> done) override {
    const auto [bucket, key] = Split(path);
    auto store = Bucket(bucket);
    if (!store) return done(std::nullopt);
    if (key.empty()) {
      return (*store)->List({.max_keys = 1}, std::move(call),
                            [path = std::move(path), done = std::move(done)](Result<ListPage> page) mutable {
                              if (page) return done(ObjectInfo{.key = std::move(path)});
                              if (page.error().code() == Code::kNotFound) return done(std::nullopt);
                              done(Fail(page.error()));
                            });
    }
    (*store)->Head(key, std::move(call),
                   [path = std::move(path), done = std::move(done)](Result<std::optional<ObjectInfo>> info) mutable {
                     if (info && *info) (*info)->key = std::move(path);
                     if (!info && info.error().code() == Code::kNotFound) return done(std::nullopt);
                     done(std::move(info));
                   });
  }

  void Get(std::string path, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    const auto [bucket, key] = Split(path);
    auto store = Bucket(bucket);
    if (!store || key.empty()) return done(std::nullopt);
    (*store)->Get(key, std::move(options), into, std::move(call), Renamed(std::move(path), std::move(done)));
  }

  void GetTo(std::string path, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override {
    const auto [bucket, key] = Split(path);
    auto store = Bucket(bucket);
    if (!store || key.empty()) return done(std::nullopt);
    (*store)->GetTo(key, std::move(options), limit, sink, std::move(call), Renamed(std::move(path), std::move(done)));
  }

  void List(ListRequest request, Call call, Done<ListPage> done) override {
    const auto [bucket, prefix] = Split(request.prefix);
    if (bucket.empty()) return ListTop(std::move(request), std::move(call), std::move(done));
    auto store = Bucket(bucket);
    const std::string top = bucket + "/";
    const bool past = !request.start_after.starts_with(top) && request.start_after > top;
    if (!store || past) return done(ListPage{});
    const bool first = request.continuation.empty();
    const bool with_own = first && prefix.empty() && request.start_after < top;
    ListRequest inside{.prefix = prefix, .delimiter = request.delimiter, .max_keys = request.max_keys};
    if (request.start_after.starts_with(top)) inside.start_after = request.start_after.substr(top.size());
    if (request.continuation.starts_with(kContinued)) inside.continuation = request.continuation.substr(1);
    const bool only_own = with_own && request.max_keys <= 1;
    if (with_own && !only_own) --inside.max_keys;
    (*store)->List(std::move(inside), std::move(call),
                   [bucket, with_own, only_own, done = std::move(done)](Result<ListPage> page) mutable {
                     if (!page && page.error().code() == Code::kNotFound) return done(ListPage{});
                     if (!page) return done(std::move(page));
                     Prepend(bucket, *page);
                     if (only_own) {
                       const bool more = !page->objects.empty() || !page->common_prefixes.empty();
                       *page = {
                           .objects = {}, .common_prefixes = {}, .continuation = std::string(more ? kFromStart : "")};
                     }
                     if (with_own) page->objects.insert(page->objects.begin(), ObjectInfo{.key = bucket + "/"});
                     done(std::move(page));
                   });
  }

  void Put(std::string path, Payload body, PutOptions options, Call call, Done<PutResult> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.Put(std::move(key), body, std::move(options), std::move(call), std::move(then));
    });
  }

  void PutFrom(std::string path, Source& body, PutOptions options, Call call, Done<PutResult> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.PutFrom(std::move(key), body, std::move(options), std::move(call), std::move(then));
    });
  }

  void Delete(std::string path, Call call, Done<void> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.Delete(std::move(key), std::move(call), std::move(then));
    });
  }

  void DeleteMany(std::vector<std::string> paths, Call call, Done<std::vector<DeleteFailure>> done) override {
    struct Batch {
      Mutex mutex;
      std::vector<DeleteFailure> failures MR_GUARDED_BY(mutex);
      std::size_t left MR_GUARDED_BY(mutex) = 0;
      Done<std::vector<DeleteFailure>> done;
    };
    auto batch = std::make_shared<Batch>();
    batch->done = std::move(done);
    std::map<std::string, std::vector<std::string>> keys;
    {
      MutexLock lock(batch->mutex);
      for (const std::string& path : paths) {
        auto [bucket, key] = Split(path);
        if (key.empty() || !Bucket(bucket)) {
          batch->failures.push_back({path, Refusal<void>(path).error()});
        } else {
          keys[bucket].push_back(std::move(key));
        }
      }
      batch->left = keys.size() + 1;  // and this call
    }
    auto finish = [](Batch& some, std::vector<DeleteFailure> failed) {
      MutexLock lock(some.mutex);
      std::ranges::move(failed, std::back_inserter(some.failures));
      if (--some.left > 0) return;
      auto failures = std::move(some.failures);
      lock.Unlock();
      some.done(std::move(failures));
    };
    for (auto& [bucket, some] : keys) {
      auto then = [batch, finish, bucket = bucket, all = some](Result<std::vector<DeleteFailure>> failed) {
        std::vector<DeleteFailure> named;
        if (failed) {
          named = *std::move(failed);
        } else {
          for (const std::string& key : all) named.push_back({key, failed.error()});
        }
        for (DeleteFailure& failure : named) failure.key = bucket + "/" + failure.key;
        finish(*batch, std::move(named));
      };
      (*Bucket(bucket))->DeleteMany(std::move(some), call, std::move(then));
    }
    finish(*batch, {});
  }

  void Copy(std::string source, std::string destination, CopyOptions options, Call call,
            Done<PutResult> done) override {
    Route(destination, done, [&](Store& store, std::string key, auto then) {
      std::string from = FromBucket(std::move(source), destination, options);
      store.Copy(std::move(from), std::move(key), std::move(options), std::move(call), std::move(then));
    });
  }

  void CreateMultipart(std::string path, PutOptions options, Call call, Done<std::string> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(then));
    });
  }

  void UploadPart(std::string path, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.UploadPart(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(then));
    });
  }

  void UploadPartFrom(std::string path, std::string upload_id, int number, Source& body, Call call,
                      Done<PartInfo> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.UploadPartFrom(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(then));
    });
  }

  void CopyPart(std::string path, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      std::string from = FromBucket(std::move(source), path, options);
      store.CopyPart(std::move(key), std::move(upload_id), number, std::move(from), range, std::move(options),
                     std::move(call), std::move(then));
    });
  }

  void CompleteMultipart(std::string path, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.CompleteMultipart(std::move(key), std::move(upload_id), std::move(parts), std::move(options),
                              std::move(call), std::move(then));
    });
  }

  void AbortMultipart(std::string path, std::string upload_id, Call call, Done<void> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.AbortMultipart(std::move(key), std::move(upload_id), std::move(call), std::move(then));
    });
  }

  void ListParts(std::string path, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override {
    Route(path, done, [&](Store& store, std::string key, auto then) {
      store.ListParts(std::move(key), std::move(upload_id), std::move(call), std::move(then));
    });
  }

  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    const auto [bucket, key] = Split(prefix);
    auto store = Bucket(bucket);
    if (!store) return done(Fail(Code::kUnsupported, "uploads are listed bucket by bucket: name one"));
    (*store)->ListUploads(key, std::move(call),
                          [bucket = bucket, done = std::move(done)](Result<std::vector<UploadInfo>> uploads) mutable {
                            for (std::size_t i = 0; uploads && i < uploads->size(); ++i) {
                              (*uploads)[i].key = bucket + "/" + (*uploads)[i].key;
                            }
                            done(std::move(uploads));
                          });
  }

  Result<std::string> Presign(std::string_view method, std::string_view path, Duration valid_for) override {
    const auto [bucket, key] = Split(path);
    return MR_TRY(Bucket(bucket))->Presign(method, key, valid_for);
  }

 private:
  /// Errors: kInvalidArgument if `name` cannot be a bucket's name.
  Result<std::shared_ptr<Store>> Bucket(const std::string& name) const MR_EXCLUDES(mutex_) {
    if (name.empty()) {
      return Fail(Code::kInvalidArgument,
                  "no bucket is named; write s3://BUCKET/KEY, or BUCKET/KEY in a tree of all buckets");
    }
    const Url url = MR_TRY(ParseUrl("s3://" + name));
    MutexLock lock(mutex_);
    auto& store = stores_[name];
    if (!store) store = MR_TRY(connection_.OpenStore(url));
    return store;
  }

  /// Passes a write to the store of its bucket. `call_store` gets the store, the key in it and the completion.
  template <class T, class CallStore>
  void Route(const std::string& path, Done<T>& done, CallStore call_store) {
    const auto [bucket, key] = Split(path);
    auto store = Bucket(bucket);
    if (!store || key.empty()) return done(Refusal<T>(path));
    call_store(**store, key, std::move(done));
  }

  static Done<std::optional<GetResult>> Renamed(std::string path, Done<std::optional<GetResult>> done) {
    return [path = std::move(path), done = std::move(done)](Result<std::optional<GetResult>> got) mutable {
      if (got && *got) (*got)->info.key = std::move(path);
      done(std::move(got));
    };
  }

  /// The key of a copy's source in its bucket. Sets options.source_bucket if that is not the destination's bucket.
  static std::string FromBucket(std::string source, const std::string& destination, CopyOptions& options) {
    auto [bucket, key] = Split(source);
    if (bucket != Split(destination).bucket) options.source_bucket = std::move(bucket);
    return std::move(key);
  }

  void ListTop(ListRequest request, Call call, Done<ListPage> done) {
    if (request.delimiter.empty()) {
      return done(Fail(Code::kUnsupported, "keys are listed bucket by bucket: name one"));
    }
    auto list = [this, request = std::move(request), call = std::move(call), done = std::move(done)]() mutable {
      auto buckets = service_->ListBuckets(call);
      if (!buckets) return done(Fail(buckets.error()));
      ListPage page;
      const std::string& after = std::max(request.start_after, request.continuation);
      std::vector<std::string> names;
      for (const Service::Bucket& bucket : *buckets) names.push_back(bucket.name + "/");
      std::ranges::sort(names);
      for (std::string& name : names) {
        if (!name.starts_with(request.prefix) || name <= after) continue;
        if (static_cast<int>(page.common_prefixes.size()) == request.max_keys) {
          page.continuation = page.common_prefixes.back();
          break;
        }
        page.common_prefixes.push_back(std::move(name));
      }
      done(std::move(page));
    };
    waiting_.Submit(std::move(list));
  }

  Connection& connection_;
  const std::shared_ptr<Service> service_;
  mutable Mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<Store>> stores_ MR_GUARDED_BY(mutex_);  ///< by bucket
  WorkQueue waiting_{"buckets", 1};  ///< runs the service's calls, which block
};

}  // namespace

Result<std::shared_ptr<Store>> OpenAllBuckets(Connection& connection) {
  return std::make_shared<AllBuckets>(connection, MR_TRY(connection.OpenService()));
}

}  // namespace millrace::object
