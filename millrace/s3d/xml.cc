#include "millrace/s3d/xml.h"

#include <pugixml.hpp>

#include "millrace/base/text.h"

namespace millrace::s3d {
namespace {

constexpr std::size_t kMaxDeletes = 1000, kMaxParts = 10'000;

void Escape(std::string_view text, std::string& out) {
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("&#x{:x};", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
}

std::unexpected<S3Error> Malformed(std::string_view what) {
  return Refuse("MalformedXML", fmt::format("The XML you provided was not well-formed: {}", what));
}

/// Elements by local name: some clients send the S3 namespace, with or without a prefix.
std::string_view LocalName(const pugi::xml_node& node) {
  std::string_view name = node.name();
  std::size_t colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

Reply<pugi::xml_node> ParseRoot(pugi::xml_document& document, std::string_view body, std::string_view root) {
  pugi::xml_parse_result parsed = document.load_buffer(
      body.data(), body.size(), pugi::parse_default | pugi::parse_ws_pcdata_single, pugi::encoding_utf8);
  if (!parsed) return Malformed(parsed.description());
  pugi::xml_node node = document.document_element();
  if (LocalName(node) != root) return Malformed(fmt::format("a <{}> was expected", root));
  return node;
}

}  // namespace

XmlWriter::XmlWriter(std::string_view root) : root_(root) {
  out_ = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<";
  out_.append(root).append(" xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
}

XmlWriter& XmlWriter::Open(std::string_view name) {
  out_.append("<").append(name).append(">");
  return *this;
}

XmlWriter& XmlWriter::Close(std::string_view name) {
  out_.append("</").append(name).append(">");
  return *this;
}

XmlWriter& XmlWriter::Text(std::string_view name, std::string_view value) {
  Open(name);
  Escape(value, out_);
  return Close(name);
}

XmlWriter& XmlWriter::Number(std::string_view name, std::uint64_t value) { return Text(name, std::to_string(value)); }

std::string XmlWriter::Finish() {
  Close(root_);
  return std::move(out_);
}

std::string ErrorDocument(const S3Error& error, std::string_view resource, std::string_view request_id) {
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>";
  for (auto [name, value] : {std::pair<std::string_view, std::string_view>{"Code", error.code},
                             {"Message", error.message},
                             {"Resource", resource},
                             {"RequestId", request_id}}) {
    out.append("<").append(name).append(">");
    Escape(value, out);
    out.append("</").append(name).append(">");
  }
  return out + "</Error>";
}

std::string Unquote(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

Reply<DeleteRequest> ParseDeleteRequest(std::string_view body) {
  pugi::xml_document document;
  pugi::xml_node root = MR_TRY(ParseRoot(document, body, "Delete"));
  DeleteRequest request;
  for (pugi::xml_node child : root) {
    if (LocalName(child) == "Quiet") request.quiet = ToLower(child.text().as_string()) == "true";
    if (LocalName(child) != "Object") continue;
    DeleteRequest::Item item;
    for (pugi::xml_node field : child) {
      if (LocalName(field) == "Key") item.key = field.text().as_string();
      if (LocalName(field) == "ETag") item.etag = Unquote(field.text().as_string());
      if (LocalName(field) == "VersionId") item.version_id = field.text().as_string();
    }
    if (item.key.empty()) return Malformed("an <Object> without a <Key>");
    request.items.push_back(std::move(item));
    if (request.items.size() > kMaxDeletes) return Malformed("more than 1,000 keys");
  }
  if (request.items.empty()) return Malformed("no keys");
  return request;
}

Reply<std::vector<CompletedPart>> ParseCompleteRequest(std::string_view body) {
  pugi::xml_document document;
  pugi::xml_node root = MR_TRY(ParseRoot(document, body, "CompleteMultipartUpload"));
  std::vector<CompletedPart> parts;
  for (pugi::xml_node child : root) {
    if (LocalName(child) != "Part") continue;
    CompletedPart part;
    for (pugi::xml_node field : child) {
      std::string_view name = LocalName(field);
      if (name == "PartNumber") part.number = field.text().as_int();
      if (name == "ETag") part.etag = Unquote(field.text().as_string());
      for (ChecksumKind kind : kChecksumKinds) {
        if (name == ChecksumElement(kind)) part.checksums.emplace_back(kind, field.text().as_string());
      }
    }
    parts.push_back(std::move(part));
    if (parts.size() > kMaxParts) return Malformed("more than 10,000 parts");
  }
  if (parts.empty()) return Malformed("no parts");
  return parts;
}

}  // namespace millrace::s3d
