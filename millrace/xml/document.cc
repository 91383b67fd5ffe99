#include "millrace/xml/document.h"

namespace millrace::xml {

Result<Document> Document::Parse(std::string_view text) {
  // A key may consist of spaces only.
  constexpr unsigned kParse = pugi::parse_default | pugi::parse_ws_pcdata_single;
  Document document;
  auto parsed = document.xml_->load_buffer(text.data(), text.size(), kParse, pugi::encoding_utf8);
  if (!parsed) return Fail(Code::kCorrupt, "no XML: {} at byte {}", parsed.description(), parsed.offset);
  return document;
}

std::string_view LocalName(const pugi::xml_node& node) {
  std::string_view name = node.name();
  std::size_t colon = name.rfind(':');
  return colon == name.npos ? name : name.substr(colon + 1);
}

}  // namespace millrace::xml
