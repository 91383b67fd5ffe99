#include "millrace/base/json.h"

#include <algorithm>

namespace millrace {
namespace {

std::string Position(std::string_view text, std::size_t byte) {
  std::string_view before = text.substr(0, std::min(byte, text.size()));
  auto line = 1 + std::count(before.begin(), before.end(), '\n');
  std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {} column {}", line, before.size() - start + 1);
}

const char* KindOf(const Json* value) { return value == nullptr ? "nothing" : value->type_name(); }

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view what, int max_depth) {
  bool too_deep = false;
  Json::parser_callback_t limit = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > max_depth;
    return !too_deep;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), limit);
    if (too_deep) return Fail(Code::kInvalidArgument, "{}: nested deeper than {} levels", what, max_depth);
    return value;
  } catch (const nlohmann::json::parse_error& error) {
    if (too_deep) return Fail(Code::kInvalidArgument, "{}: nested deeper than {} levels", what, max_depth);
    return Fail(Code::kInvalidArgument, "{}: not valid JSON at {}", what,
                Position(text, error.byte > 0 ? error.byte - 1 : 0));
  } catch (const nlohmann::json::exception& error) {
    return Fail(Code::kInvalidArgument, "{}: not valid JSON: {}", what, error.what());
  }
}

std::string DumpJson(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string DumpJsonPretty(const Json& value) { return value.dump(2, ' ', false, Json::error_handler_t::replace); }

const Json* JsonFind(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  auto found = object.find(std::string(key));
  return found == object.end() ? nullptr : &*found;
}

Result<std::string> JsonString(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_string())
    return Fail(Code::kInvalidArgument, "\"{}\" should be a string, found {}", key, KindOf(value));
  return value->get<std::string>();
}

Result<std::int64_t> JsonInt(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
    return Fail(Code::kInvalidArgument, "\"{}\" should be an integer, found {}", key, KindOf(value));
  return value->get<std::int64_t>();
}

Result<std::uint64_t> JsonUint(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  bool ok = value != nullptr &&
            (value->is_number_unsigned() || (value->is_number_integer() && value->get<std::int64_t>() >= 0));
  if (!ok) return Fail(Code::kInvalidArgument, "\"{}\" should be a non-negative integer, found {}", key, KindOf(value));
  return value->get<std::uint64_t>();
}

Result<double> JsonNumber(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_number())
    return Fail(Code::kInvalidArgument, "\"{}\" should be a number, found {}", key, KindOf(value));
  return value->get<double>();
}

}  // namespace millrace
