#include "millrace/object/open/open.h"

#include <map>
#include <utility>

#include "millrace/base/threads/sync.h"
#include "millrace/object/hf/hub.h"
#include "millrace/object/local/file_store.h"
#include "millrace/object/s3/endpoint.h"

namespace millrace::object {
namespace {

/// Opens what is asked for on first use: commands on local files need neither credentials nor a network.
class LazyConnection final : public Connection {
 public:
  explicit LazyConnection(ConnectOptions options) : options_(std::move(options)) {}

  Result<std::shared_ptr<Store>> OpenStore(const Url& url) override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (url.scheme == Url::Scheme::kFile) return Files();
    if (url.scheme == Url::Scheme::kHub) return OpenRepository(url.bucket);
    if (url.bucket.empty())
      return Fail(Code::kInvalidArgument, "{} names no bucket; write s3://BUCKET or s3://BUCKET/KEY", url.ToString());
    return MR_TRY(Endpoint())->OpenBucket(url.bucket);
  }
  Result<std::shared_ptr<Service>> OpenService() override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::shared_ptr<s3::Endpoint> endpoint = MR_TRY(Endpoint());
    return std::shared_ptr<Service>(endpoint, &endpoint->service());
  }
  Result<Url> Pin(const Url& url, Call call) override MR_EXCLUDES(mutex_) {
    if (url.scheme != Url::Scheme::kHub) return url;
    std::shared_ptr<hf::Hub> hub;
    {
      MutexLock lock(mutex_);
      hub = MR_TRY(Hub());
    }
    std::string pinned = MR_TRY(hub->PinRevision(url.bucket, std::move(call)));
    return Url{url.scheme, std::move(pinned), url.key};
  }
  Status ReloadCredentials() override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    // What opens later reads them then.
    if (hub_) MR_TRY(hub_->ReloadToken());
    return endpoint_ ? endpoint_->ReloadCredentials() : Status();
  }

 private:
  Result<std::shared_ptr<Store>> Files() MR_REQUIRES(mutex_) {
    // The folders are the user's, so empty ones stay.
    if (!files_) files_ = MR_TRY(OpenFileStore({.root = "/", .prune_folders = false}));
    return files_;
  }

  /// One store for each repository, so that all that one connection reads of a branch is of one commit.
  Result<std::shared_ptr<Store>> OpenRepository(const std::string& repository) MR_REQUIRES(mutex_) {
    std::shared_ptr<hf::Hub> hub = MR_TRY(Hub());
    std::shared_ptr<Store>& store = repositories_[repository];
    if (!store) store = hub->OpenRepository(repository);
    return store;
  }

  Result<std::shared_ptr<hf::Hub>> Hub() MR_REQUIRES(mutex_) {
    if (!hub_) hub_ = MR_TRY(hf::Hub::Open(options_));
    return hub_;
  }

  Result<std::shared_ptr<s3::Endpoint>> Endpoint() MR_REQUIRES(mutex_) {
    if (!endpoint_) endpoint_ = MR_TRY(s3::Endpoint::Open(options_));
    return endpoint_;
  }

  const ConnectOptions options_;
  Mutex mutex_;
  std::shared_ptr<Store> files_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<s3::Endpoint> endpoint_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<hf::Hub> hub_ MR_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Store>> repositories_ MR_GUARDED_BY(mutex_);  ///< by Url::bucket
};

}  // namespace

Result<std::unique_ptr<Connection>> OpenConnection(ConnectOptions options) {
  return std::make_unique<LazyConnection>(std::move(options));
}

}  // namespace millrace::object
