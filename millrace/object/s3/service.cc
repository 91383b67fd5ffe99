#include <algorithm>

#include "millrace/object/s3/protocol/xml.h"
#include "millrace/object/s3/session.h"

namespace millrace::object::s3 {
namespace {

class S3Service final : public Service {
 public:
  explicit S3Service(std::shared_ptr<Endpoint::Session> session) : session_(std::move(session)) {}

  std::string Identity() const override { return session_->dispatcher().settings().Identity() + "/"; }

  Result<std::vector<Bucket>> ListBuckets(Call call) override {
    http::Response response = MR_TRY(Run({.name = "ListBuckets"}, std::move(call)));
    return ParseBuckets(response.body);
  }

  Status MakeBucket(std::string_view name, Call call) override {
    MR_TRY(CheckName(name));
    Operation operation{.name = "CreateBucket", .method = "PUT", .bucket = std::string(name)};
    const std::string& region = session_->dispatcher().settings().region;
    if (region != "us-east-1") operation.own_body = BucketDocument(region);
    MR_TRY(Run(std::move(operation), std::move(call)));
    return {};
  }

  Status RemoveBucket(std::string_view name, Call call) override {
    MR_TRY(CheckName(name));
    MR_TRY(Run({.name = "DeleteBucket", .method = "DELETE", .bucket = std::string(name)}, std::move(call)));
    return {};
  }

 private:
  static Status CheckName(std::string_view name) {
    auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
             (c >= 'A' && c <= 'Z');
    };
    if (name.size() >= 3 && name.size() <= 255 && name.front() != '.' && std::ranges::all_of(name, allowed)) return {};
    return Fail(Code::kInvalidArgument, "{:?} cannot name a bucket: use 3 to 63 lower-case letters, digits and hyphens",
                name.substr(0, 80));
  }

  Result<http::Response> Run(Operation operation, Call call) {
    Mutex mutex;
    CondVar ready;
    std::optional<Result<http::Response>> result;
    session_->dispatcher().Run(std::move(operation), std::move(call), [&](Outcome outcome) {
      MutexLock lock(mutex);
      result.emplace(std::move(outcome.response));
      ready.NotifyOne();
    });
    MutexLock lock(mutex);
    while (!result) ready.Wait(mutex);
    return *std::move(result);
  }

  const std::shared_ptr<Endpoint::Session> session_;
};

}  // namespace

std::unique_ptr<Service> NewService(std::shared_ptr<Endpoint::Session> session) {
  return std::make_unique<S3Service>(std::move(session));
}

}  // namespace millrace::object::s3
