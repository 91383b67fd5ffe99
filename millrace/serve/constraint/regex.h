// Regular expressions as grammars.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// Adds what a regular expression matches, as a whole, in front of `next`. Supported are literals, ".", classes,
/// \d \w \s and their complements (ASCII), groups (also named ones), "|", "*", "+", "?", "{m}", "{m,}", "{m,n}", also
/// lazy, and "^" and "$" at the ends of the whole or of its alternatives. `in_json_string`: the characters stand within
/// a string of JSON, escaped where JSON wants it. Errors: kInvalidArgument with the place; kUnsupported for
/// look-around, back references and the like; kResourceExhausted if repetitions make it too large.
Result<Grammar::NodeId> AddRegex(std::string_view pattern, bool in_json_string, Grammar& grammar, Grammar::NodeId next);

}  // namespace millrace::serve
