#include "millrace/object/open/open.h"

#include <utility>

#include "millrace/base/threads/sync.h"
#include "millrace/object/file/file_store.h"
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
    if (url.bucket.empty()) return Fail(Code::kInvalidArgument, "{} names no bucket", url.ToString());
    return MR_TRY(Endpoint())->OpenBucket(url.bucket);
  }
  Result<std::shared_ptr<Service>> OpenService() override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::shared_ptr<s3::Endpoint> endpoint = MR_TRY(Endpoint());
    return std::shared_ptr<Service>(endpoint, &endpoint->service());
  }
  Status ReloadCredentials() override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return endpoint_ ? endpoint_->ReloadCredentials() : Status();  // an endpoint reads them when it opens
  }

 private:
  Result<std::shared_ptr<Store>> Files() MR_REQUIRES(mutex_) {
    // The folders are the user's, so empty ones stay.
    if (!files_) files_ = MR_TRY(OpenFileStore({.root = "/", .prune_folders = false}));
    return files_;
  }

  Result<std::shared_ptr<s3::Endpoint>> Endpoint() MR_REQUIRES(mutex_) {
    if (!endpoint_) endpoint_ = MR_TRY(s3::Endpoint::Open(options_));
    return endpoint_;
  }

  const ConnectOptions options_;
  Mutex mutex_;
  std::shared_ptr<Store> files_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<s3::Endpoint> endpoint_ MR_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<Connection>> OpenConnection(ConnectOptions options) {
  return std::make_unique<LazyConnection>(std::move(options));
}

}  // namespace millrace::object
