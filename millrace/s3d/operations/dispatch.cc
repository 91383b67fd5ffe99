#include "millrace/s3d/operations/dispatch.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/text.h"
#include "millrace/s3d/operations/conditions.h"

namespace millrace::s3d {
namespace {

using enum Route::Level;
constexpr std::size_t kMaxKey = 1024;  // bytes; S3's limit

constexpr Route kRoutes[] = {
    {"ListBuckets", kService, "GET", "", false, ListBuckets},

    {"ListObjectVersions", kBucket, "GET", "versions", false, ListObjectVersions},
    {"ListMultipartUploads", kBucket, "GET", "uploads", false, ListMultipartUploads},
    {"GetBucketLocation", kBucket, "GET", "location", false, GetBucketSetting},
    {"GetBucketVersioning", kBucket, "GET", "versioning", false, GetBucketSetting},
    {"GetBucketAcl", kBucket, "GET", "acl", false, GetBucketSetting},
    {"GetBucketPolicy", kBucket, "GET", "policy", false, GetBucketSetting},
    {"GetBucketPolicyStatus", kBucket, "GET", "policyStatus", false, GetBucketSetting},
    {"GetBucketTagging", kBucket, "GET", "tagging", false, GetBucketSetting},
    {"GetBucketCors", kBucket, "GET", "cors", false, GetBucketSetting},
    {"GetBucketLifecycleConfiguration", kBucket, "GET", "lifecycle", false, GetBucketSetting},
    {"GetBucketEncryption", kBucket, "GET", "encryption", false, GetBucketSetting},
    {"GetBucketWebsite", kBucket, "GET", "website", false, GetBucketSetting},
    {"GetBucketReplication", kBucket, "GET", "replication", false, GetBucketSetting},
    {"GetObjectLockConfiguration", kBucket, "GET", "object-lock", false, GetBucketSetting},
    {"GetBucketOwnershipControls", kBucket, "GET", "ownershipControls", false, GetBucketSetting},
    {"GetPublicAccessBlock", kBucket, "GET", "publicAccessBlock", false, GetBucketSetting},
    {"GetBucketLogging", kBucket, "GET", "logging", false, GetBucketSetting},
    {"GetBucketNotificationConfiguration", kBucket, "GET", "notification", false, GetBucketSetting},
    {"GetBucketAccelerateConfiguration", kBucket, "GET", "accelerate", false, GetBucketSetting},
    {"GetBucketRequestPayment", kBucket, "GET", "requestPayment", false, GetBucketSetting},
    {"ListObjectsV2", kBucket, "GET", "list-type", false, ListObjectsV2},
    {"ListObjects", kBucket, "GET", "", false, ListObjects},
    {"HeadBucket", kBucket, "HEAD", "", false, HeadBucket},
    {"CreateBucket", kBucket, "PUT", "", false, CreateBucket},
    {"DeleteBucket", kBucket, "DELETE", "", false, DeleteBucket},
    {"DeleteObjects", kBucket, "POST", "delete", false, DeleteObjects},

    {"ListParts", kObject, "GET", "uploadId", false, ListParts},
    {"GetObjectAcl", kObject, "GET", "acl", false, GetObjectSetting},
    {"GetObjectTagging", kObject, "GET", "tagging", false, GetObjectSetting},
    {"GetObjectRetention", kObject, "GET", "retention", false, GetObjectSetting},
    {"GetObjectLegalHold", kObject, "GET", "legal-hold", false, GetObjectSetting},
    {"GetObject", kObject, "GET", "", false, GetObject},
    {"HeadObject", kObject, "HEAD", "", false, GetObject},
    {"UploadPartCopy", kObject, "PUT", "uploadId", true, UploadPartCopy},
    {"UploadPart", kObject, "PUT", "uploadId", false, UploadPart},
    {"CopyObject", kObject, "PUT", "", true, CopyObject},
    {"PutObject", kObject, "PUT", "", false, PutObject},
    {"DeleteObject", kObject, "DELETE", "", false, DeleteObject},
    {"AbortMultipartUpload", kObject, "DELETE", "uploadId", false, AbortMultipartUpload},
    {"CreateMultipartUpload", kObject, "POST", "uploads", false, CreateMultipartUpload},
    {"CompleteMultipartUpload", kObject, "POST", "uploadId", false, CompleteMultipartUpload},
};

/// Query parameters that name a sub-resource. All others are parameters of the operation.
constexpr std::string_view kSubresources[] = {
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "inventory",
    "legal-hold",
    "lifecycle",
    "list-type",
    "location",
    "logging",
    "metrics",
    "object-lock",
    "notification",
    "policy",
    "ownershipControls",
    "policyStatus",
    "renameObject",
    "replication",
    "publicAccessBlock",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "website",
    "intelligent-tiering",
};

}  // namespace

Reply<Target> ParseTarget(const http::ServerRequest& request) {
  auto path = PercentDecode(request.path());
  if (!path || !path->starts_with('/')) return Refuse("InvalidURI", "Couldn't parse the specified URI.");
  Target target;
  std::string_view host = request.headers().Get("Host");
  host = host.substr(0, host.rfind(':'));
  std::string_view rest = std::string_view(*path).substr(1);
  if (constexpr std::string_view kDomain = ".localhost"; host.ends_with(kDomain)) {
    target.bucket = host.substr(0, host.size() - kDomain.size());
  } else {
    std::size_t slash = std::min(rest.find('/'), rest.size());
    target.bucket = rest.substr(0, slash);
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  target.key = rest;
  if (target.key.size() > kMaxKey) return Refuse("KeyTooLongError", "Your key is too long");
  if (target.bucket.empty() && !target.key.empty())
    return Refuse("InvalidBucketName", "The specified bucket is not valid.");
  return target;
}

Reply<const Route*> FindRoute(const http::ServerRequest& request, const Target& target, const QueryParameters& query) {
  const Route::Level level = target.bucket.empty() ? kService : target.key.empty() ? kBucket : kObject;
  const bool copies = request.headers().Has("x-amz-copy-source");
  std::string_view asked;
  for (const auto& [name, value] : query) {
    if (std::ranges::find(kSubresources, name) != std::end(kSubresources)) asked = name;
    if (name == "versionId" && !value.empty() && value != "null") {
      return Refuse("NoSuchVersion", "The specified version does not exist.");
    }
  }
  for (const Route& route : kRoutes) {
    if (route.level == level && route.method == request.method() && route.parameter == asked &&
        (!route.copies || copies)) {
      return &route;
    }
  }
  if (!asked.empty()) {
    return Refuse("NotImplemented", fmt::format("{} of ?{} is not implemented here", request.method(), asked));
  }
  return Refuse("MethodNotAllowed", "The specified method is not allowed against this resource.");
}

bool OperationContext::Asks(std::string_view parameter) const {
  return std::ranges::any_of(query, [&](const auto& field) { return field.first == parameter; });
}

Reply<WriteCondition> OperationContext::Condition() const {
  return unconditional ? WriteCondition() : ParseWriteCondition(request.headers());
}

std::string_view OperationContext::Parameter(std::string_view name) const {
  for (const auto& [key, value] : query) {
    if (key == name) return value;
  }
  return {};
}

Reply<std::uint64_t> OperationContext::Number(std::string_view name, std::uint64_t absent, std::uint64_t least,
                                              std::uint64_t most) const {
  std::string_view text = Parameter(name);
  if (text.empty()) return absent;
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return Refuse("InvalidArgument",
                  fmt::format("Argument {} must be an integer between {} and {}", name, least, most));
  }
  return value;
}

http::Headers OperationContext::CommonHeaders() const {
  http::Headers headers;
  headers.Set("x-amz-request-id", request_id);
  headers.Set("Server", "millrace");
  return headers;
}

Reply<void> OperationContext::SendXml(std::string_view document, http::Headers headers) {
  headers.Set("Content-Type", "application/xml");
  MR_TRY(response.Send(200, std::move(headers), AsBytes(document)));
  return {};
}

Reply<void> OperationContext::SendEmpty(int status, http::Headers headers) {
  MR_TRY(response.Send(status, std::move(headers), {}));
  return {};
}

}  // namespace millrace::s3d
