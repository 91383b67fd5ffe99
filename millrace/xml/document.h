// Reads XML from untrusted sources, over pugixml. Include it from .cc files only. The caller bounds the size, because
// the text is in memory; the parser bounds the nesting. The parser skips DTDs and processing instructions and expands
// only XML's five predefined entities.
#pragma once

#include <memory>
#include <pugixml.hpp>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::xml {

/// A parsed document. Owns its nodes.
class Document {
 public:
  /// Errors: kCorrupt if `text` is not XML; the message says where.
  static Result<Document> Parse(std::string_view text);
  pugi::xml_node root() const { return xml_->document_element(); }

 private:
  std::unique_ptr<pugi::xml_document> xml_ = std::make_unique<pugi::xml_document>();
};

/// An element's name without its namespace prefix, which some clients send.
std::string_view LocalName(const pugi::xml_node& node);

}  // namespace millrace::xml
