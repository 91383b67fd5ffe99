#include "millrace/serve/protocol/body_reader.h"

#include "millrace/base/text.h"

namespace millrace::serve {

void BodyReader::Refuse(std::string_view param, std::string message, std::string code) {
  if (!error_) error_ = ApiError{.message = std::move(message), .param = std::string(param), .code = std::move(code)};
}

const Json* BodyReader::Find(std::string_view key) {
  known_.push_back(key);
  const Json* member = JsonFind(body_, key);
  return member == nullptr || member->is_null() ? nullptr : member;
}

void BodyReader::Flag(std::string_view key, bool& into) {
  const Json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_boolean()) return Refuse(key, fmt::format("{} should be true or false", key));
  into = member->get<bool>();
}

void BodyReader::Text(std::string_view key, std::string& into) {
  const Json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_string()) return Refuse(key, fmt::format("{} should be a string", key));
  into = member->get<std::string>();
}

std::optional<std::int64_t> BodyReader::Integer(std::string_view key, std::int64_t least, std::int64_t most) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const Json* member = Find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_number_integer() || (member->is_number_unsigned() && member->get<std::uint64_t>() > kMax)) {
    Refuse(key, fmt::format("{} should be a whole number", key));
    return std::nullopt;
  }
  const auto value = member->get<std::int64_t>();
  if (value < least || value > most)
    Refuse(key, fmt::format("{} should be from {} to {}, not {}", key, least, most, value));
  return value;
}

void BodyReader::Number(std::string_view key, double& into, double least, double most) {
  const Json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_number()) return Refuse(key, fmt::format("{} should be a number", key));
  const double value = member->get<double>();
  if (!(value >= least && value <= most)) {
    return Refuse(key, fmt::format("{} should be from {} to {}, not {}", key, least, most, value));
  }
  into = value;
}

void BodyReader::Neutral(std::string_view key, const Json& value) {
  const Json* member = Find(key);
  if (member == nullptr || *member == value) return;
  Refuse(key, fmt::format("{} is not supported by this server; leave it out", key), "unsupported_parameter");
}

void BodyReader::RejectUnknown() {
  for (const auto& [key, value] : body_.items()) {
    if (error_) return;
    if (!value.is_null() && std::find(known_.begin(), known_.end(), key) == known_.end())
      Refuse(key, UnknownName("parameter", key, known_));
  }
}

}  // namespace millrace::serve
