#include "millrace/s3d/protocol/s3_error.h"

#include <utility>

namespace millrace::s3d {
namespace {

/// Codes whose status is not 400.
constexpr std::pair<std::string_view, int> kStatuses[] = {
    {"PermanentRedirect", 301},
    {"TemporaryRedirect", 307},
    {"AccessDenied", 403},
    {"InvalidAccessKeyId", 403},
    {"SignatureDoesNotMatch", 403},
    {"RequestTimeTooSkewed", 403},
    {"NoSuchBucket", 404},
    {"NoSuchKey", 404},
    {"NoSuchUpload", 404},
    {"NoSuchVersion", 404},
    {"NoSuchBucketPolicy", 404},
    {"NoSuchTagSet", 404},
    {"NoSuchCORSConfiguration", 404},
    {"NoSuchLifecycleConfiguration", 404},
    {"NoSuchWebsiteConfiguration", 404},
    {"NoSuchPublicAccessBlockConfiguration", 404},
    {"NoSuchObjectLockConfiguration", 404},
    {"ObjectLockConfigurationNotFoundError", 404},
    {"OwnershipControlsNotFoundError", 404},
    {"ReplicationConfigurationNotFoundError", 404},
    {"ServerSideEncryptionConfigurationNotFoundError", 404},
    {"MethodNotAllowed", 405},
    {"BucketAlreadyExists", 409},
    {"BucketAlreadyOwnedByYou", 409},
    {"BucketNotEmpty", 409},
    {"ConditionalRequestConflict", 409},
    {"MissingContentLength", 411},
    {"PreconditionFailed", 412},
    {"InvalidRange", 416},
    {"InvalidPartNumber", 416},
    {"InternalError", 500},
    {"NotImplemented", 501},
    {"ServiceUnavailable", 503},
    {"SlowDown", 503},
    {"InsufficientStorage", 507},
};

std::string_view S3CodeOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "InvalidRequest";
    case Code::kUnavailable:
    case Code::kCancelled:
      return "IncompleteBody";
    case Code::kDeadlineExceeded:
      return "RequestTimeout";
    case Code::kResourceExhausted:
      return "MaxMessageLengthExceeded";
    case Code::kNoSpace:
      return "InsufficientStorage";
    default:
      return "InternalError";
  }
}

}  // namespace

int StatusOfS3Code(std::string_view code) {
  for (const auto& [name, status] : kStatuses) {
    if (name == code) return status;
  }
  return 400;
}

S3Error::S3Error(std::string_view error_code, std::string error_message)
    : code(error_code), status(StatusOfS3Code(error_code)), message(std::move(error_message)) {}

S3Error::S3Error(const Error& error) : S3Error(S3CodeOf(error.code()), error.ToString()) {}

}  // namespace millrace::s3d
