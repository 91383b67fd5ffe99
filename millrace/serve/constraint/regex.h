// Regular expressions as grammars.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// The texts that a regular expression is matched with.
enum class RegexUse : std::uint8_t {
  kText,         ///< it matches a text as a whole
  kJsonString,   ///< it matches the characters of a string of JSON as a whole; they are escaped where JSON wants it
  kJsonPattern,  ///< the same, but it may match a part of the string: "pattern" of JSON schema
};

/// Adds what a regular expression matches in front of `next`. Supported are literals, ".", classes,
/// \d \w \s and their complements (ASCII), groups (also named ones), "|", "*", "+", "?", "{m}", "{m,}", "{m,n}", also
/// lazy, and "^" and "$" at the ends of the whole or of its alternatives. Errors: kInvalidArgument with the place;
/// kUnsupported for look-around, back references and the like; kResourceExhausted if repetitions make it too large.
Result<Grammar::NodeId> AddRegex(std::string_view pattern, RegexUse use, Grammar& grammar, Grammar::NodeId next);

}  // namespace millrace::serve
