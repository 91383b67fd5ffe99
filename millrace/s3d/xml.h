// The XML that S3 speaks: small documents, written by hand, read through pugixml.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/s3d/model.h"
#include "millrace/s3d/s3_error.h"

namespace millrace::s3d {

/// Writes a document element by element. One thread.
class XmlWriter {
 public:
  explicit XmlWriter(std::string_view root);
  XmlWriter& Open(std::string_view name);
  XmlWriter& Close(std::string_view name);
  XmlWriter& Text(std::string_view name, std::string_view value);
  XmlWriter& Number(std::string_view name, std::uint64_t value);
  XmlWriter& Bool(std::string_view name, bool value) { return Text(name, value ? "true" : "false"); }
  /// Closes the root element and gives the document away.
  std::string Finish();

 private:
  std::string root_, out_;
};

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

std::string Unquote(std::string_view etag);

}  // namespace millrace::s3d
