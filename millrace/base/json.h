// JSON values. nlohmann::json reads the syntax. Parsing takes time proportional to the text (times the logarithm of an
// object's size), stays within limits of depth, size and count, and reports failures as values.
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

/// What a JSON text may ask of this process. Every text from outside is parsed within such limits.
struct JsonLimits {
  int depth = 64;                         ///< arrays and objects inside one another
  std::size_t bytes = 256 * kMiB;         ///< of the text
  std::size_t values = 16 * 1024 * 1024;  ///< members and elements at all depths; each costs 16 to 64 bytes of memory
};

/// Parses one JSON text. Of members with one name the last value counts, at the place of the first, as in Python.
/// `what` names the source in messages ("manifest s3://…").
/// Errors: kInvalidArgument, with line and column, on a syntax error or invalid UTF-8, and beyond a limit.
Result<Json> ParseJson(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// As ParseJson, into a value whose objects are sorted trees. For texts with many members that are looked up by name:
/// a lookup in `Json` takes time proportional to the number of members.
Result<nlohmann::json> ParseJsonTree(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// One line; invalid UTF-8 becomes U+FFFD (never throws).
std::string DumpJson(const Json& value);
std::string DumpJsonPretty(const Json& value);

/// Typed access to a required or optional member. Errors name the member and what was found instead.
Result<std::string> JsonString(const Json& object, std::string_view key);
Result<std::int64_t> JsonInt(const Json& object, std::string_view key);
Result<std::uint64_t> JsonUint(const Json& object, std::string_view key);
Result<double> JsonNumber(const Json& object, std::string_view key);
const Json* JsonFind(const Json& object, std::string_view key);  ///< nullptr when absent or not an object

}  // namespace millrace
