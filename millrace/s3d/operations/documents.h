// The XML documents that S3 clients send, and the <Error> document.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// Returns an <Error> document. Like S3's, it has no namespace.
std::string ErrorDocument(const S3Error& error, std::string_view resource, std::string_view request_id);

struct DeleteRequest {
  bool quiet = false;
  struct Item {
    std::string key, etag, version_id;
  };
  std::vector<Item> items;
};
/// Errors: MalformedXML if it is not a <Delete> document with 1 to 1,000 keys.
Reply<DeleteRequest> ParseDeleteRequest(std::string_view body);

/// A part that a client names when it completes an upload.
struct CompletedPart {
  struct GivenChecksum {
    ChecksumKind kind;
    std::string value;  ///< base64
  };
  int number = 0;
  std::string etag;  ///< without quotes
  std::vector<GivenChecksum> checksums;
};
/// Errors: MalformedXML if it is not a <CompleteMultipartUpload> document with 1 to 10,000 parts.
Reply<std::vector<CompletedPart>> ParseCompleteRequest(std::string_view body);

}  // namespace millrace::s3d
