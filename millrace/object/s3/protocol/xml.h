// S3's XML documents as a client reads and writes them. Everything read comes from outside: sizes are bounded by the
// caller (the body is in memory), nesting by the parser, numbers by their types.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"
#include "millrace/object/service.h"

namespace millrace::object::s3 {

struct ErrorDocument {
  std::string code, message, request_id, region;
};
/// Empty fields where the body is no error document: proxies answer with HTML.
ErrorDocument ParseErrorDocument(std::string_view body);
/// Is this body of a 200 answer an error all the same? (CopyObject, CompleteMultipartUpload and UploadPartCopy start to
/// answer before they know.)
bool IsErrorDocument(std::string_view body);

/// The functions below fail with kCorrupt when the body is not the document they expect.
Result<ListPage> ParseListPage(std::string_view body);
/// What its continuation will be, from a glance at the text; empty where that does not tell.
std::string PeekContinuation(std::string_view body);
Result<VersionsPage> ParseVersionsPage(std::string_view body);
Result<std::string> ParseUploadId(std::string_view body);
/// ETag and checksum of CopyObject, UploadPartCopy and CompleteMultipartUpload answers.
struct WrittenDocument {
  std::string etag, checksum_crc32c;
};
Result<WrittenDocument> ParseWritten(std::string_view body);
struct PartsPage {
  std::vector<PartInfo> parts;
  std::string next_marker;  ///< empty on the last page
};
Result<PartsPage> ParsePartsPage(std::string_view body);
struct UploadsPage {
  std::vector<UploadInfo> uploads;
  std::string next_key, next_upload_id;  ///< empty on the last page
};
Result<UploadsPage> ParseUploadsPage(std::string_view body);
Result<std::vector<Service::Bucket>> ParseBuckets(std::string_view body);
struct DeleteError {
  std::string key, code, message;
};
Result<std::vector<DeleteError>> ParseDeleteErrors(std::string_view body);
/// AssumeRole's and AssumeRoleWithWebIdentity's answers.
struct RoleCredentials {
  std::string access_key, secret_key, session_token, expiration;
};
Result<RoleCredentials> ParseRoleCredentials(std::string_view body);

std::string DeleteDocument(std::span<const std::string> keys);
std::string CompleteDocument(const std::vector<PartInfo>& parts);
std::string BucketDocument(std::string_view region);

}  // namespace millrace::object::s3
