#include "millrace/s3d/operations/documents.h"

#include "millrace/base/text.h"
#include "millrace/xml/document.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

constexpr std::size_t kMaxDeletes = 1000, kMaxParts = 10'000;  // S3's limits

std::unexpected<S3Error> Malformed() {
  return Refuse("MalformedXML",
                "The XML you provided was not well-formed or did not validate against our published schema.");
}

Reply<xml::Document> Parse(std::string_view body, std::string_view root) {
  auto document = xml::Document::Parse(body);
  if (!document) return Malformed();
  if (xml::LocalName(document->root()) != root) return Malformed();
  return *std::move(document);
}

}  // namespace

std::string ErrorDocument(const S3Error& error, std::string_view resource, std::string_view request_id) {
  xml::Writer xml("Error", /*name_space=*/"");
  xml.Text("Code", error.code).Text("Message", error.message);
  if (!error.region.empty()) xml.Text("Region", error.region);
  if (!error.endpoint.empty()) xml.Text("Endpoint", error.endpoint);
  return xml.Text("Resource", resource).Text("RequestId", request_id).Finish();
}

Reply<DeleteRequest> ParseDeleteRequest(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, "Delete"));
  DeleteRequest request;
  for (pugi::xml_node child : document.root()) {
    if (xml::LocalName(child) == "Quiet") request.quiet = ToLower(child.text().as_string()) == "true";
    if (xml::LocalName(child) != "Object") continue;
    DeleteRequest::Item item;
    for (pugi::xml_node field : child) {
      if (xml::LocalName(field) == "Key") item.key = field.text().as_string();
      if (xml::LocalName(field) == "ETag") item.etag = xml::Unquote(field.text().as_string());
      if (xml::LocalName(field) == "VersionId") item.version_id = field.text().as_string();
    }
    if (item.key.empty()) return Malformed();
    request.items.push_back(std::move(item));
    if (request.items.size() > kMaxDeletes) return Malformed();
  }
  if (request.items.empty()) return Malformed();
  return request;
}

Reply<std::vector<CompletedPart>> ParseCompleteRequest(std::string_view body) {
  xml::Document document = MR_TRY(Parse(body, "CompleteMultipartUpload"));
  std::vector<CompletedPart> parts;
  for (pugi::xml_node child : document.root()) {
    if (xml::LocalName(child) != "Part") continue;
    CompletedPart part;
    for (pugi::xml_node field : child) {
      std::string_view name = xml::LocalName(field);
      if (name == "PartNumber") {
        part.number = field.text().as_int();
        if (part.number < 1) return Refuse("InvalidArgument", "PartNumber must be >= 1");
      }
      if (name == "ETag") part.etag = xml::Unquote(field.text().as_string());
      for (ChecksumKind kind : kChecksumKinds) {
        if (name == ChecksumElement(kind)) part.checksums.push_back({kind, field.text().as_string()});
      }
    }
    if (part.number == 0 || part.etag.empty()) return Malformed();
    parts.push_back(std::move(part));
    if (parts.size() > kMaxParts) return Malformed();
  }
  if (parts.empty()) return Malformed();
  return parts;
}

}  // namespace millrace::s3d
