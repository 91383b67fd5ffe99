// Reading XML that comes from outside (pugixml underneath; include this from sources only). The size is bounded by the
// caller, since the text is in memory, nesting by the parser; DTDs and processing instructions are skipped, not obeyed,
// and entities are never expanded beyond XML's own five.
#pragma once

#include <memory>
#include <pugixml.hpp>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::xml {

/// One parsed document. Its nodes live as long as it does.
class Document {
 public:
  /// Fails with kCorrupt, saying where, on what is no XML.
  static Result<Document> Parse(std::string_view text);
  pugi::xml_node root() const { return xml_->document_element(); }

 private:
  std::unique_ptr<pugi::xml_document> xml_ = std::make_unique<pugi::xml_document>();
};

/// An element's name without a prefix: some clients send the S3 namespace with one.
std::string_view LocalName(const pugi::xml_node& node);

}  // namespace millrace::xml
