// JSON as Python's json module reads it, and numbers as Python prints them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::data {

/// Brackets below this level are kept by RewriteForParser; a parser must allow so many.
inline constexpr std::size_t kKeptNesting = 1000;

/// Rewrites what Python's json.loads reads and simdjson refuses, so that simdjson reads it. Returns nothing if
/// json.loads refuses `text`, too. What `text` says is kept, except:
/// - integers beyond 64 bits, NaN, Infinity and 1e999: of the members of the outermost object they become strings, as
///   Python prints the numbers; further inside they become null.
/// - what is nested deeper than kKeptNesting becomes null.
/// - strings with half of a surrogate pair (which no UTF-8 can hold) become null; members named so are left out.
/// REQUIRES: `text` is UTF-8. Takes memory for twice the text. No limit of nesting or digits.
std::optional<std::string> RewriteForParser(std::string_view text);

/// As Python's repr of a float: "0.1", "1e+16", "inf", "nan".
void AppendPythonFloat(double value, std::string& out);

}  // namespace millrace::data
