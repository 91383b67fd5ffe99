// JSON values. nlohmann::json reads the syntax. Parsing takes time proportional to the text (times the logarithm of an
// object's size). It enforces limits of depth, size and count, and returns failures as errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace {

/// Objects keep the order in which keys were inserted, so that what we print is stable and readable.
using Json = nlohmann::ordered_json;

/// Bounds on the time and memory that parsing a JSON text may take. Every text from outside is parsed within them.
struct JsonLimits {
  int depth = 64;                         ///< nested arrays and objects; far more than the formats read here have
  std::size_t bytes = 256 * kMiB;         ///< of the text
  std::size_t values = 16 * 1024 * 1024;  ///< members and elements at all depths; each costs 16 to 64 bytes of memory
};

/// Parses one JSON text. If an object names a member twice, the member has the first one's position and the last one's
/// value, as in Python.
/// `what` names the source in messages ("manifest s3://…").
/// Errors: kInvalidArgument, with line and column, on a syntax error or invalid UTF-8, and beyond a limit.
Result<Json> ParseJson(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// Like ParseJson(), but objects of the result are sorted trees. Use it for objects with many members that are looked
/// up by name: a lookup in `Json` takes time proportional to the number of members.
Result<nlohmann::json> ParseJsonTree(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// Returns the value as one line of JSON. Invalid UTF-8 becomes U+FFFD. Never throws.
std::string DumpJson(const Json& value);
/// Like DumpJson(), with line breaks and indentation.
std::string DumpJsonPretty(const Json& value);

/// Return the member `key` of an object.
/// Errors: kInvalidArgument if it is absent or has another type; the message names the member and what was found.
Result<std::string> JsonString(const Json& object, std::string_view key);
Result<std::int64_t> JsonInt(const Json& object, std::string_view key);
Result<std::uint64_t> JsonUint(const Json& object, std::string_view key);
Result<double> JsonNumber(const Json& object, std::string_view key);
const Json* JsonFind(const Json& object, std::string_view key);  ///< nullptr when absent or not an object

}  // namespace millrace
