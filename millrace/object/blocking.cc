#include "millrace/object/blocking.h"

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::object {
namespace {

/// Holds the outcome of one call until its completion has run.
template <class T>
class Waiter {
 public:
  Done<T> Callback() {
    return [this](Result<T> outcome) {
      MutexLock lock(mutex_);
      outcome_.emplace(std::move(outcome));
      // Under the lock: after its release, the waiter may return and destroy this object.
      ready_.NotifyOne();
    };
  }
  Result<T> Wait() {
    MutexLock lock(mutex_);
    while (!outcome_) ready_.Wait(mutex_);
    return std::move(outcome_).value();
  }

 private:
  Mutex mutex_;
  CondVar ready_;
  std::optional<Result<T>> outcome_ MR_GUARDED_BY(mutex_);
};

template <class T, class Start>
Result<T> Await(Start start) {
  Waiter<T> waiter;
  start(waiter.Callback());
  return waiter.Wait();
}

}  // namespace

Result<std::optional<ObjectInfo>> Head(ReadStore& store, std::string key, Call call) {
  return Await<std::optional<ObjectInfo>>(
      [&](auto done) { store.Head(std::move(key), std::move(call), std::move(done)); });
}

Result<std::optional<GetResult>> Get(ReadStore& store, std::string key, GetOptions options, MutableByteSpan into,
                                     Call call) {
  return Await<std::optional<GetResult>>(
      [&](auto done) { store.Get(std::move(key), std::move(options), into, std::move(call), std::move(done)); });
}

Result<std::optional<GetResult>> GetTo(ReadStore& store, std::string key, GetOptions options, std::uint64_t limit,
                                       Sink& sink, Call call) {
  return Await<std::optional<GetResult>>([&](auto done) {
    store.GetTo(std::move(key), std::move(options), limit, sink, std::move(call), std::move(done));
  });
}

Result<std::optional<Content>> GetAll(ReadStore& store, std::string key, std::uint64_t max_bytes, Call call) {
  constexpr int kAttempts = 8;  // an object that changes faster than that cannot be read whole
  for (int attempt = 1;; ++attempt) {
    auto info = MR_TRY(Head(store, key, call));
    if (!info) return std::nullopt;
    if (info->size > max_bytes) {
      return Fail(Code::kResourceExhausted, "{} has {} bytes, more than the {} expected of it", key, info->size,
                  max_bytes);
    }
    Content content{std::string(info->size, '\0'), {}};
    auto got = Get(store, key, {.if_match = info->etag}, AsWritableBytes(content.bytes), call);
    if (!got && got.error().code() == Code::kPreconditionFailed && attempt < kAttempts) continue;
    if (!got) return Fail(got.error());
    if (!*got) return std::nullopt;
    if ((*got)->bytes != info->size) {
      return Fail(Code::kCorrupt, "{}: read {} of {} bytes", key, (*got)->bytes, info->size);
    }
    content.info = std::move((*got)->info);
    return content;
  }
}

Result<std::optional<ObjectInfo>> HeadVersion(ReadStore& store, std::string key, std::string version, Call call) {
  return Await<std::optional<ObjectInfo>>(
      [&](auto done) { store.HeadVersion(std::move(key), std::move(version), std::move(call), std::move(done)); });
}

Result<ListPage> List(ReadStore& store, ListRequest request, Call call) {
  return Await<ListPage>([&](auto done) { store.List(std::move(request), std::move(call), std::move(done)); });
}

Result<VersionsPage> ListVersions(ReadStore& store, VersionsRequest request, Call call) {
  return Await<VersionsPage>(
      [&](auto done) { store.ListVersions(std::move(request), std::move(call), std::move(done)); });
}

Status ListAll(ReadStore& store, ListRequest request, const std::function<bool(const ListPage&)>& visit, Call call) {
  for (;;) {
    ListPage page = MR_TRY(List(store, request, call));
    if (!visit(page) || page.continuation.empty()) return {};
    request.continuation = std::move(page.continuation);
  }
}

Result<PutResult> Put(Store& store, std::string key, Payload body, PutOptions options, Call call) {
  return Await<PutResult>(
      [&](auto done) { store.Put(std::move(key), body, std::move(options), std::move(call), std::move(done)); });
}

Status Delete(Store& store, std::string key, Call call) {
  return Await<void>([&](auto done) { store.Delete(std::move(key), std::move(call), std::move(done)); });
}

Result<std::vector<DeleteFailure>> DeleteMany(Store& store, std::vector<std::string> keys, Call call) {
  return Await<std::vector<DeleteFailure>>(
      [&](auto done) { store.DeleteMany(std::move(keys), std::move(call), std::move(done)); });
}

Result<std::vector<DeleteFailure>> DeleteVersions(Store& store, std::vector<VersionName> versions, Call call) {
  return Await<std::vector<DeleteFailure>>(
      [&](auto done) { store.DeleteVersions(std::move(versions), std::move(call), std::move(done)); });
}

Result<bool> Restore(Store& store, std::string key, RestoreOptions options, Call call) {
  return Await<bool>(
      [&](auto done) { store.Restore(std::move(key), std::move(options), std::move(call), std::move(done)); });
}

Result<PutResult> Copy(Store& store, std::string source, std::string destination, CopyOptions options, Call call) {
  return Await<PutResult>([&](auto done) {
    store.Copy(std::move(source), std::move(destination), std::move(options), std::move(call), std::move(done));
  });
}

Result<std::string> CreateMultipart(Store& store, std::string key, PutOptions options, Call call) {
  return Await<std::string>(
      [&](auto done) { store.CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(done)); });
}

Result<PartInfo> UploadPart(Store& store, std::string key, std::string upload_id, int number, Payload body, Call call) {
  return Await<PartInfo>([&](auto done) {
    store.UploadPart(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(done));
  });
}

Result<PartInfo> CopyPart(Store& store, std::string key, std::string upload_id, int number, std::string source,
                          ByteRange range, CopyOptions options, Call call) {
  return Await<PartInfo>([&](auto done) {
    store.CopyPart(std::move(key), std::move(upload_id), number, std::move(source), range, std::move(options),
                   std::move(call), std::move(done));
  });
}

Result<PutResult> CompleteMultipart(Store& store, std::string key, std::string upload_id, std::vector<PartInfo> parts,
                                    PutOptions options, Call call) {
  return Await<PutResult>([&](auto done) {
    store.CompleteMultipart(std::move(key), std::move(upload_id), std::move(parts), std::move(options), std::move(call),
                            std::move(done));
  });
}

Status AbortMultipart(Store& store, std::string key, std::string upload_id, Call call) {
  return Await<void>(
      [&](auto done) { store.AbortMultipart(std::move(key), std::move(upload_id), std::move(call), std::move(done)); });
}

Result<std::vector<PartInfo>> ListParts(Store& store, std::string key, std::string upload_id, Call call) {
  return Await<std::vector<PartInfo>>(
      [&](auto done) { store.ListParts(std::move(key), std::move(upload_id), std::move(call), std::move(done)); });
}

Result<std::vector<UploadInfo>> ListUploads(Store& store, std::string prefix, Call call) {
  return Await<std::vector<UploadInfo>>(
      [&](auto done) { store.ListUploads(std::move(prefix), std::move(call), std::move(done)); });
}

}  // namespace millrace::object
