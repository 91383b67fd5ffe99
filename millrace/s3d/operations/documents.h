// The documents that S3 clients send, and the one that tells them of an error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// An <Error> document without the S3 namespace, as S3 sends it.
std::string ErrorDocument(const S3Error& error, std::string_view resource, std::string_view request_id);

struct DeleteRequest {
  bool quiet = false;
  struct Item {
    std::string key, etag, version_id;
  };
  std::vector<Item> items;
};
/// Fails with MalformedXML on what is not a <Delete> of 1 to 1,000 keys.
Reply<DeleteRequest> ParseDeleteRequest(std::string_view body);

struct CompletedPart {
  int number = 0;
  std::string etag;  ///< without quotes
  std::vector<std::pair<ChecksumKind, std::string>> checksums;
};
/// Fails with MalformedXML on what is not a <CompleteMultipartUpload> of 1 to 10,000 parts.
Reply<std::vector<CompletedPart>> ParseCompleteRequest(std::string_view body);

}  // namespace millrace::s3d
