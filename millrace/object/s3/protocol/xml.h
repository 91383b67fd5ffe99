// S3's XML documents, as a client reads and writes them. Documents from a server are not trusted: the caller bounds
// their size (the body is in memory), the parser their nesting, and the types their numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"
#include "millrace/object/s3/protocol/signer.h"
#include "millrace/object/service.h"

namespace millrace::object::s3 {

struct ErrorDocument {
  std::string code, message, request_id, region;
};
/// All fields are empty if the body is not an error document: some proxies answer with HTML.
ErrorDocument ParseErrorDocument(std::string_view body);
/// Returns whether the body of a response with status 200 is an error document. CopyObject, CompleteMultipartUpload and
/// UploadPartCopy send the status before they know the outcome.
bool IsErrorDocument(std::string_view body);

// The functions below fail with kCorrupt if the body is not the document that they expect.

/// The beginning of the continuations of a server that knows only the first version of listings. The marker follows. No
/// server's own token begins with this control character.
inline constexpr std::string_view kMarkerToken = "\x01marker:";
/// The continuation of a truncated page without a token is kMarkerToken and the last name.
Result<ListPage> ParseListPage(std::string_view body);
/// The continuation of a listing, without parsing the whole document. Empty if it is not at a known place.
std::string PeekContinuation(std::string_view body);
Result<VersionsPage> ParseVersionsPage(std::string_view body);
Result<std::string> ParseUploadId(std::string_view body);
/// The response of CopyObject, UploadPartCopy and CompleteMultipartUpload. Some servers leave out the ETag.
struct WrittenDocument {
  std::string etag, checksum_crc32c;
};
Result<WrittenDocument> ParseWritten(std::string_view body);
struct PartsPage {
  std::vector<PartInfo> parts;
  std::string next_marker;  ///< empty on the last page
};
/// The names and values of an object's tags.
Result<Query> ParseTags(std::string_view body);
Result<PartsPage> ParsePartsPage(std::string_view body);
struct UploadsPage {
  std::vector<UploadInfo> uploads;
  std::string next_key, next_upload_id;  ///< empty on the last page
};
Result<UploadsPage> ParseUploadsPage(std::string_view body);
Result<std::vector<Service::Bucket>> ParseBuckets(std::string_view body);
struct DeleteError {
  std::string key, version, code, message;  ///< the version is empty if none was named
};
Result<std::vector<DeleteError>> ParseDeleteErrors(std::string_view body);
/// The response of AssumeRole and AssumeRoleWithWebIdentity.
struct RoleCredentials {
  std::string access_key, secret_key, session_token, expiration;
};
Result<RoleCredentials> ParseRoleCredentials(std::string_view body);

std::string DeleteDocument(std::span<const VersionName> names);
std::string CompleteDocument(const std::vector<PartInfo>& parts);
std::string RestoreDocument(const RestoreOptions& options);
std::string BucketDocument(std::string_view region);

}  // namespace millrace::object::s3
