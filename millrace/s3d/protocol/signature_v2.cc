// Signature Version 2 in a URL: HMAC-SHA1 over the method, a few fields, the time of expiry and the path. Amazon S3
// takes it in its older regions, and boto3 makes such URLs by default for us-east-1. Source: Amazon S3 User Guide,
// "Signing and authenticating REST requests", query string request authentication.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/s3d/protocol/signature.h"

namespace millrace::s3d {
namespace {

/// HMAC-SHA1 of `message`, in base64. For this old protocol alone.
std::string Sign(std::string_view key, std::string_view message) {
  std::array<std::byte, 20> digest{};
  unsigned size = 0;
  if (HMAC(EVP_sha1(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(message.data()),
           message.size(), reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr)
    std::abort();
  return Base64Encode(digest);
}

/// Parameters that the signature covers.
constexpr std::string_view kSignedParameters[] = {
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
};

/// Parameters that it does not cover: those of listings, and its own.
constexpr std::string_view kOtherParameters[] = {
    "AWSAccessKeyId",     "Expires",   "Signature",     "content-md5",      "content-type",
    "continuation-token", "delimiter", "encoding-type", "fetch-owner",      "key-marker",
    "list-type",          "marker",    "max-keys",      "max-parts",        "max-uploads",
    "part-number-marker", "prefix",    "start-after",   "upload-id-marker", "version-id-marker",
};

std::string_view ValueOf(const QueryParameters& query, std::string_view name) {
  const auto found = std::ranges::find(query, name, &QueryParameters::value_type::first);
  return found == query.end() ? std::string_view() : std::string_view(found->second);
}

/// boto3 repeats signed fields in the query, and Amazon reads them there. This endpoint requires the header fields too,
/// so that it drops none silently.
Reply<void> CheckParameters(const http::Headers& headers, const QueryParameters& query) {
  for (const auto& [name, value] : query) {
    const bool is_field = name.starts_with("x-amz-") || name == "content-type" || name == "content-md5";
    if (is_field && Trim(headers.Get(name)) != Trim(value)) {
      return Refuse("AccessDenied", fmt::format("The URL was signed with {}: {}; send this header field", name, value));
    }
    if (!is_field && std::ranges::find(kSignedParameters, name) == std::end(kSignedParameters) &&
        std::ranges::find(kOtherParameters, name) == std::end(kOtherParameters)) {
      return Refuse("AccessDenied",
                    fmt::format("Signature Version 2 does not cover the parameter {}: presign with s3v4", name));
    }
  }
  return {};
}

std::string CanonicalAmzFields(const http::Headers& headers) {
  std::map<std::string, std::string> fields;
  for (const auto& [field, value] : headers) {
    const std::string name = ToLower(field);
    if (!name.starts_with("x-amz-")) continue;
    std::string& all = fields[name];
    all += (all.empty() ? "" : ",") + std::string(Trim(value));
  }
  std::string text;
  for (const auto& [name, value] : fields) text += fmt::format("{}:{}\n", name, value);
  return text;
}

std::string CanonicalResource(const http::ServerRequest& request, const QueryParameters& query) {
  std::string text;
  std::string_view host = request.headers().Get("Host");
  host = host.substr(0, host.rfind(':'));
  if (constexpr std::string_view kDomain = ".localhost"; host.ends_with(kDomain)) {
    text = fmt::format("/{}", host.substr(0, host.size() - kDomain.size()));
  }
  text += request.path();
  if (text.find('/', 1) == std::string::npos && text.size() > 1) text += '/';  // clients sign a bucket as a folder
  QueryParameters covered;
  std::ranges::copy_if(query, std::back_inserter(covered), [](const auto& parameter) {
    return std::ranges::find(kSignedParameters, parameter.first) != std::end(kSignedParameters);
  });
  std::ranges::sort(covered);
  char separator = '?';
  for (const auto& [name, value] : covered) {
    text += separator + name + (value.empty() ? "" : "=" + value);
    separator = '&';
  }
  return text;
}

}  // namespace

Reply<Authenticated> Authenticator::CheckPresignedV2(const http::ServerRequest& request,
                                                     const QueryParameters& query) const {
  const std::string_view expires = ValueOf(query, "Expires");
  std::int64_t seconds = -1;
  const auto [end, error] = std::from_chars(expires.data(), expires.data() + expires.size(), seconds);
  if (error != std::errc() || end != expires.data() + expires.size() || seconds < 0) {
    return Refuse("AccessDenied",
                  "Query-string authentication with AWSAccessKeyId needs Expires, in seconds since 1970");
  }
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(clock_.Wall().time_since_epoch()).count();
  if (now > seconds) return Refuse("AccessDenied", "Request has expired.");
  if (credentials_.access_key.empty() || ValueOf(query, "AWSAccessKeyId") != credentials_.access_key) {
    return Refuse("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.");
  }
  const http::Headers& headers = request.headers();
  MR_TRY(CheckParameters(headers, query));
  const std::string to_sign =
      fmt::format("{}\n{}\n{}\n{}\n{}{}", request.method(), headers.Get("Content-MD5"), headers.Get("Content-Type"),
                  expires, CanonicalAmzFields(headers), CanonicalResource(request, query));
  const std::string expected = Sign(credentials_.secret_key, to_sign);
  if (!ConstantTimeEqual(expected, ValueOf(query, "Signature"))) {
    return Refuse(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided (Signature Version 2). "
        "Check your key and signing method.");
  }
  Authenticated who;
  if (std::string_view promised = headers.Get("x-amz-content-sha256"); !promised.empty()) who.content_sha256 = promised;
  return who;
}

}  // namespace millrace::s3d
