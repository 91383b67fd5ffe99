// Divides a template into text and the tokens of its tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::jinja {

struct Token {
  enum class Kind {
    kText,         ///< between tags
    kOutputBegin,  ///< {{
    kOutputEnd,
    kTagBegin,  ///< {%
    kTagEnd,
    kName,
    kString,  ///< the value, without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
  bool Is(Kind wanted, std::string_view wanted_text) const { return kind == wanted && text == wanted_text; }
};

/// Returns the tokens, with a kEnd as the last one. White space around tags is removed as Jinja does with trim_blocks
/// and lstrip_blocks, which is how chat templates are read.
/// Errors: kInvalidArgument with the line.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace millrace::jinja
