#include "millrace/jinja/arguments.h"

#include <algorithm>

#include "millrace/jinja/python/work.h"

namespace millrace::jinja {

std::optional<Value> ArgumentReader::Take(std::string_view parameter) {
  if (taken_ < arguments_.positional.size()) return arguments_.positional[taken_++];
  const auto named = std::find_if(arguments_.named.begin(), arguments_.named.end(),
                                  [&](const auto& each) { return each.first == parameter; });
  if (named == arguments_.named.end()) return std::nullopt;
  Value value = std::move(named->second);
  arguments_.named.erase(named);
  return value;
}

void ArgumentReader::Refuse(std::string_view parameter, std::string_view wanted, const Value& given) {
  if (error_) return;
  error_ = Error(Code::kInvalidArgument, fmt::format("{}: {} should be {}, not {}", function_, parameter, wanted,
                                                     given.undefined() ? "left out" : given.TypeName()));
}

Value ArgumentReader::Require(std::string_view parameter) {
  const auto value = Take(parameter);
  if (!value) Refuse(parameter, "given", Value());
  return value.value_or(Value());
}

std::string ArgumentReader::Text(std::string_view parameter, std::string_view fallback) {
  const auto value = Take(parameter);
  if (!value || value->none()) return std::string(fallback);
  if (value->text() == nullptr) {
    Refuse(parameter, "a string", *value);
    return "";
  }
  return value->ToText();
}

std::string ArgumentReader::RequireText(std::string_view parameter) {
  const Value value = Require(parameter);
  if (value.text() == nullptr) Refuse(parameter, "a string", value);
  return value.text() != nullptr ? value.ToText() : "";
}

std::int64_t ArgumentReader::Integer(std::string_view parameter, std::int64_t fallback) {
  const auto value = Take(parameter);
  if (!value || value->none()) return fallback;
  if (!value->integer()) {
    Refuse(parameter, "an integer", *value);
    return fallback;
  }
  return value->AsInteger();
}

bool ArgumentReader::Flag(std::string_view parameter, bool fallback) {
  const auto value = Take(parameter);
  return value ? value->Truthy() : fallback;
}

Status ArgumentReader::Finish() {
  if (error_) return std::unexpected(*error_);
  MR_TRY(Work::Check());
  if (taken_ < arguments_.positional.size()) {
    return Fail(Code::kInvalidArgument, "{} takes {} arguments, not {}", function_, taken_,
                arguments_.positional.size());
  }
  if (!arguments_.named.empty()) {
    return Fail(Code::kInvalidArgument, "{} has no argument \"{}\"; remove it", function_,
                arguments_.named.front().first);
  }
  return {};
}

}  // namespace millrace::jinja
