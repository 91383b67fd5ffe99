#include "millrace/data/documents/message_members.h"

#include <algorithm>
#include <array>

#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

/// A member that says something that no layout writes.
struct UnrenderedMember {
  std::string_view name;
  BrokenReason reason;
};

constexpr std::array<UnrenderedMember, 8> kOfRecords = {{{"tools", BrokenReason::kUnrenderedTools},
                                                         {"functions", BrokenReason::kUnrenderedFunctions},
                                                         {"image", BrokenReason::kUnrenderedImage},
                                                         {"images", BrokenReason::kUnrenderedImage},
                                                         {"audio", BrokenReason::kUnrenderedAudio},
                                                         {"audios", BrokenReason::kUnrenderedAudio},
                                                         {"video", BrokenReason::kUnrenderedVideo},
                                                         {"videos", BrokenReason::kUnrenderedVideo}}};
constexpr std::array<UnrenderedMember, 6> kOfMessages = {
    {{"tool_calls", BrokenReason::kUnrenderedToolCalls},
     {"function_call", BrokenReason::kUnrenderedFunctionCall},
     {"reasoning_content", BrokenReason::kUnrenderedReasoningContent},
     {"reasoning", BrokenReason::kUnrenderedReasoning},
     {"thinking", BrokenReason::kUnrenderedThinking},
     {"name", BrokenReason::kUnrenderedName}}};
/// What the type of a part of a content begins with.
constexpr std::array<UnrenderedMember, 6> kPartTypes = {{{"image", BrokenReason::kUnrenderedImage},
                                                         {"input_image", BrokenReason::kUnrenderedImage},
                                                         {"audio", BrokenReason::kUnrenderedAudio},
                                                         {"input_audio", BrokenReason::kUnrenderedAudio},
                                                         {"video", BrokenReason::kUnrenderedVideo},
                                                         {"input_video", BrokenReason::kUnrenderedVideo}}};

constexpr auto kRecordMembers = [] {
  std::array<std::string_view, kOfRecords.size()> names;
  std::ranges::transform(kOfRecords, names.begin(), &UnrenderedMember::name);
  return names;
}();

}  // namespace

std::string_view RoleOf(std::string_view said) {
  if (said == "human") return kUserRole;
  if (said == "gpt" || said == "bot" || said == "model" || said == "chatgpt") return kAssistantRole;
  return said;
}

bool FindText(simdjson::dom::object fields, std::string_view name, std::string_view& text) {
  simdjson::dom::element value;
  return FindLast(fields, name, value) && value.get(text) == simdjson::SUCCESS;
}

bool IsEmpty(simdjson::dom::element value) {
  std::string_view text;
  simdjson::dom::array list;
  simdjson::dom::object members;
  if (!value.get(text)) return text.empty() || text == "[]";
  if (!value.get(list)) return list.size() == 0;
  if (!value.get(members)) return members.size() == 0;
  return value.is_null();
}

std::expected<bool, BrokenReason> IsTrained(simdjson::dom::object fields) {
  simdjson::dom::element value;
  bool trained = true;
  if (FindLast(fields, "train", value) && !value.is_null() && value.get(trained)) {
    return std::unexpected(BrokenReason::kBadWeight);
  }
  if (!FindLast(fields, "weight", value) || value.is_null()) return trained;
  double weight = 0;
  if (value.get(weight) || (weight != 0 && weight != 1)) return std::unexpected(BrokenReason::kBadWeight);
  return trained && weight == 1;
}

std::optional<BrokenReason> JoinParts(simdjson::dom::array parts, std::string& whole) {
  std::string_view text;
  for (simdjson::dom::element part : parts) {
    simdjson::dom::object members;
    std::string_view type;
    if (part.get(members) || !FindText(members, "type", type)) return BrokenReason::kNotChat;
    if (type != "text") {
      const auto* known =
          std::ranges::find_if(kPartTypes, [&](const UnrenderedMember& one) { return type.starts_with(one.name); });
      return known == kPartTypes.end() ? BrokenReason::kUnrenderedPart : known->reason;
    }
    if (!FindText(members, "text", text)) return BrokenReason::kNotChat;
    whole += text;
  }
  return std::nullopt;
}

std::span<const std::string_view> RecordMembers() { return kRecordMembers; }

BrokenReason UnrenderedRecordReason(std::string_view name) {
  return std::ranges::find(kOfRecords, name, &UnrenderedMember::name)->reason;
}

std::optional<BrokenReason> UnrenderedReason(std::string_view name) {
  const auto* found = std::ranges::find(kOfMessages, name, &UnrenderedMember::name);
  if (found == kOfMessages.end()) return std::nullopt;
  return found->reason;
}

}  // namespace millrace::data
