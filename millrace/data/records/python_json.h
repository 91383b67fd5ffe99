// JSON as Python's json module reads it, and numbers as Python prints them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::data {

/// Levels of nesting that RewriteForParser keeps. The parser behind it must allow as many.
/// 1000: the recursion limit of Python, and below simdjson's default of 1024.
inline constexpr std::size_t kKeptNesting = 1000;

/// Rewrites JSON that Python's json.loads accepts and simdjson refuses, so that simdjson accepts it. Returns nothing if
/// json.loads refuses `text`, too. The meaning stays, except:
/// - Integers beyond 64 bits, NaN, Infinity and 1e999: members of the outermost object become strings, as Python prints
///   the numbers. Deeper values become null.
/// - Values nested deeper than kKeptNesting become null.
/// - Strings with half of a surrogate pair, which UTF-8 cannot hold, become null. Members with such a name are left
///   out.
/// REQUIRES: `text` is UTF-8. Takes twice the memory of the text. Has no limit of nesting or digits.
std::optional<std::string> RewriteForParser(std::string_view text);

/// Appends a float as Python's repr prints it: "0.1", "1e+16", "inf", "nan".
void AppendPythonFloat(double value, std::string& out);

}  // namespace millrace::data
