#include "millrace/serve/protocol/prompts.h"

#include <limits>
#include <optional>

namespace millrace::serve {
namespace {

std::optional<std::vector<TokenId>> TokenIds(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<TokenId>::max()) return std::nullopt;
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

void ReadPrompts(BodyReader& reader, std::string_view key, int most, std::vector<Prompt>& prompts) {
  const Json* member = reader.Find(key);
  if (member == nullptr) return reader.Refuse(key, fmt::format("{} is required", key));
  auto add = [&](const Json& one) {
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
      return true;
    }
    auto ids = one.is_array() && !one.empty() ? TokenIds(one) : std::nullopt;
    if (!ids) return false;
    prompts.emplace_back(*std::move(ids));
    return true;
  };
  constexpr std::string_view kShape = "should be a string, a list of token ids, or a list of these";
  bool one = member->is_string() || (member->is_array() && !member->empty() && member->front().is_number());
  if (one ? !add(*member) : !member->is_array() || member->empty()) {
    return reader.Refuse(key, fmt::format("{} {}", key, kShape));
  }
  if (one) return;
  if (member->size() > static_cast<std::size_t>(most)) {
    return reader.Refuse(key, fmt::format("{} has {} entries; this server takes {}", key, member->size(), most));
  }
  for (const Json& entry : *member) {
    if (!add(entry)) return reader.Refuse(key, fmt::format("{} {}", key, kShape));
  }
}

}  // namespace millrace::serve
