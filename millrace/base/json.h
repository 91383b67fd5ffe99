// JSON values. nlohmann::json does the work; parsing is bounded and its failures are values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace {

/// Objects keep the order in which keys were inserted, so that what we print is stable and readable.
using Json = nlohmann::ordered_json;

/// Parses one JSON text. Fails with kInvalidArgument, naming line and column, on a syntax error, on invalid UTF-8 and
/// on nesting deeper than `max_depth`. `what` names the source in the message ("manifest s3://…").
Result<Json> ParseJson(std::string_view text, std::string_view what, int max_depth = 64);

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
