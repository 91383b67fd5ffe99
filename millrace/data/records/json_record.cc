#include "millrace/data/records/json_record.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

#include "millrace/base/text.h"
#include "millrace/data/records/python_json.h"

namespace millrace::data {

simdjson::error_code JsonRecordParser::Read(std::string_view json, simdjson::dom::element& root) {
  if (padded_.size() < json.size() + simdjson::SIMDJSON_PADDING) {
    padded_ = Buffer(json.size() + json.size() / 4 + simdjson::SIMDJSON_PADDING);
  }
  std::memcpy(padded_.data(), json.data(), json.size());
  std::memset(padded_.data() + json.size(), 0, simdjson::SIMDJSON_PADDING);
  return parser_.parse(reinterpret_cast<const char*>(padded_.data()), json.size(), false).get(root);
}

std::expected<simdjson::dom::object, BrokenReason> JsonRecordParser::Parse(std::string_view record) {
  if (record.size() > kMaxRecordBytes) return std::unexpected(BrokenReason::kTooLong);
  if (record.starts_with("\xEF\xBB\xBF")) record.remove_prefix(3);
  simdjson::dom::element root;
  if (Read(record, root) != simdjson::SUCCESS) {
    if (!IsValidUtf8(record)) return std::unexpected(BrokenReason::kNotUtf8);
    const auto rewritten = RewriteForParser(record);
    if (!rewritten || Read(*rewritten, root) != simdjson::SUCCESS) return std::unexpected(BrokenReason::kNotJson);
  }
  simdjson::dom::object object;
  if (root.get(object)) return std::unexpected(BrokenReason::kNotJson);
  return object;
}

bool FindLast(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value) {
  bool found = false;
  for (const auto member : object) {
    if (member.key != name) continue;
    value = member.value;
    found = true;
  }
  return found;
}

bool FindField(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value) {
  if (FindLast(object, name, value)) return true;
  for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    simdjson::dom::element outer;
    simdjson::dom::object inner;
    if (FindLast(object, name.substr(0, dot), outer) && !outer.get(inner) &&
        FindField(inner, name.substr(dot + 1), value)) {
      return true;
    }
  }
  return false;
}

bool AppendPythonText(simdjson::dom::element value, std::string& out) {
  using Type = simdjson::dom::element_type;
  switch (value.type()) {
    case Type::STRING:
      out += std::string_view(value);
      return true;
    case Type::INT64:
      fmt::format_to(std::back_inserter(out), "{}", std::int64_t(value));
      return true;
    case Type::UINT64:
      fmt::format_to(std::back_inserter(out), "{}", std::uint64_t(value));
      return true;
    case Type::DOUBLE:
      AppendPythonFloat(double(value), out);
      return true;
    case Type::BOOL:
      out += bool(value) ? "True" : "False";
      return true;
    default:
      return false;
  }
}

}  // namespace millrace::data
