#include "millrace/data/documents/chat.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "millrace/data/documents/message_members.h"
#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

/// Returns the bytes of the white-space character at the start or end of the text. 0: none.
std::size_t SpaceIn(std::string_view text, bool at_end) {
  static constexpr std::string_view kWide[] = {
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83",
      "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A",
      "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  if (text.empty()) return 0;
  auto c = static_cast<unsigned char>(at_end ? text.back() : text.front());
  if ((c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20)) return 1;
  if (c < 0x80) return 0;
  for (std::string_view space : kWide) {
    if (at_end ? text.ends_with(space) : text.starts_with(space)) return space.size();
  }
  return 0;
}

/// The members of a message that are read. The last one only refers to a call that is refused.
constexpr std::array<std::string_view, 7> kRead = {"role",   "content", "from",        "value",
                                                   "weight", "train",   "tool_call_id"};

/// Returns true if the roles are user, assistant, user, assistant and so on.
bool Alternates(std::span<const Message> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != (i % 2 == 0 ? kUserRole : kAssistantRole)) return false;
  }
  return true;
}

}  // namespace

std::string_view StripSpace(std::string_view text) {
  while (std::size_t space = SpaceIn(text, false)) text.remove_prefix(space);
  while (std::size_t space = SpaceIn(text, true)) text.remove_suffix(space);
  return text;
}

struct ConversationParser::Rep {
  void Clear() {
    messages.clear();
    others.clear();
    joined.clear();
    masked = false;
  }
  /// Appends the messages of a list, whose answers are trained if `trained`.
  std::optional<BrokenReason> AppendTurns(simdjson::dom::element list, bool trained, std::vector<Message>& into) {
    simdjson::dom::array turns;
    if (list.get(turns)) return BrokenReason::kNotChat;
    for (simdjson::dom::element turn : turns) {
      simdjson::dom::object fields;
      if (turn.get(fields)) return BrokenReason::kNotChat;
      if (auto broken = CheckMembers(fields)) return broken;
      std::string_view role;
      const bool plain = FindText(fields, "role", role);
      if (!plain && !FindText(fields, "from", role)) return BrokenReason::kNotChat;
      const auto content = ContentOf(fields, plain ? "content" : "value");
      if (!content) return content.error();
      const auto weighed = IsTrained(fields);
      if (!weighed) return weighed.error();
      role = RoleOf(role);
      masked |= role == kAssistantRole && !*weighed;
      into.push_back({role, *content, trained && role == kAssistantRole && *weighed});
    }
    return std::nullopt;
  }
  std::optional<BrokenReason> CheckMembers(simdjson::dom::object fields) {
    for (const auto member : fields) {
      const auto refused = UnrenderedReason(member.key);
      if (!refused && std::ranges::find(kRead, member.key) != kRead.end()) continue;
      if (IsEmpty(member.value)) continue;
      if (refused) return refused;
      if (ignored.size() < kMaxIgnored) ignored.emplace(member.key);
    }
    return std::nullopt;
  }
  /// Returns the text of a message.
  std::expected<std::string_view, BrokenReason> ContentOf(simdjson::dom::object fields, std::string_view name) {
    std::string_view text;
    simdjson::dom::element value;
    simdjson::dom::array parts;
    if (FindText(fields, name, text)) return text;
    if (!FindLast(fields, name, value) || value.get(parts)) return std::unexpected(BrokenReason::kNotChat);
    std::string& whole = joined.emplace_back();
    if (auto broken = JoinParts(parts, whole)) return std::unexpected(*broken);
    return whole;
  }
  static std::optional<BrokenReason> CheckRecord(simdjson::dom::object record) {
    simdjson::dom::element value;
    for (const std::string_view name : RecordMembers()) {
      if (FindLast(record, name, value) && !IsEmpty(value)) return UnrenderedRecordReason(name);
    }
    return std::nullopt;
  }
  /// Returns why nothing can be learnt of the messages.
  std::optional<BrokenReason> Check(std::span<const Message> all) const {
    if (all.empty()) return BrokenReason::kEmpty;
    if (std::ranges::none_of(all, [](const Message& m) { return m.trained && !m.content.empty(); })) {
      return masked ? BrokenReason::kNoLabel : BrokenReason::kNotChat;
    }
    return std::nullopt;
  }

  JsonRecordParser json;
  std::vector<Message> messages, others;
  std::deque<std::string> joined;  ///< contents that were lists of parts
  bool masked = false;             ///< an answer of the record has the weight 0
  std::set<std::string, std::less<>> ignored;
};

ConversationParser::ConversationParser() : rep_(new Rep) {}
ConversationParser::~ConversationParser() = default;

const std::set<std::string, std::less<>>& ConversationParser::ignored_members() const { return rep_->ignored; }

std::vector<std::string> ConversationParser::OtherMembers() {
  const auto names = RecordMembers();
  return {names.begin(), names.end()};
}

std::expected<std::span<const Message>, BrokenReason> ConversationParser::Parse(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  const simdjson::dom::object object = *parsed;
  std::vector<Message>& messages = rep_->messages;
  rep_->Clear();
  simdjson::dom::element list, completion;
  std::optional<BrokenReason> broken = Rep::CheckRecord(object);
  if (broken) return std::unexpected(*broken);
  if (FindLast(object, "messages", list) || FindLast(object, "conversations", list)) {
    broken = rep_->AppendTurns(list, true, messages);
  } else if (FindLast(object, "prompt", list) && FindLast(object, "completion", completion)) {
    broken = rep_->AppendTurns(list, false, messages);
    if (!broken) broken = rep_->AppendTurns(completion, true, messages);
  } else {
    broken = BrokenReason::kMissingField;
  }
  if (!broken) broken = rep_->Check(messages);
  if (broken) return std::unexpected(*broken);
  return messages;
}

std::expected<ConversationPair, BrokenReason> ConversationParser::ParsePair(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  const simdjson::dom::object object = *parsed;
  simdjson::dom::element prompt;
  simdjson::dom::array turns;
  const bool has_prompt = FindLast(object, "prompt", prompt) && !prompt.get(turns);
  rep_->Clear();
  if (auto broken = Rep::CheckRecord(object)) return std::unexpected(*broken);
  for (const auto& [name, messages] : {std::pair{"chosen", &rep_->messages}, {"rejected", &rep_->others}}) {
    simdjson::dom::element list;
    if (!FindLast(object, name, list)) return std::unexpected(BrokenReason::kMissingField);
    std::optional<BrokenReason> broken;
    if (has_prompt) broken = rep_->AppendTurns(prompt, false, *messages);
    if (!broken) broken = rep_->AppendTurns(list, true, *messages);
    if (broken) return std::unexpected(*broken);
  }
  std::vector<Message>&chosen = rep_->messages, &rejected = rep_->others;
  for (std::size_t i = 0; i < std::min(chosen.size(), rejected.size()); ++i) {
    if (chosen[i].role != rejected[i].role || chosen[i].content != rejected[i].content) break;
    chosen[i].trained = rejected[i].trained = false;
  }
  for (const std::vector<Message>* messages : {&chosen, &rejected}) {
    if (auto broken = rep_->Check(*messages)) return std::unexpected(*broken);
  }
  return ConversationPair{chosen, rejected};
}

std::optional<BrokenReason> WriteLlama2(std::span<const Message> messages, DocumentScript& script) {
  std::optional<std::string_view> system;
  if (messages.front().role == kSystemRole) {
    system = messages.front().content;
    messages = messages.subspan(1);
  }
  if (!Alternates(messages)) return BrokenReason::kNotChat;
  for (const Message& message : messages) {
    if (message.role == kAssistantRole) {
      script.Text(" ", message.trained);
      script.Text(StripSpace(message.content), message.trained);
      script.Text(" ", message.trained);
      script.Eos(message.trained);
      continue;
    }
    script.Bos();
    script.Text("[INST] ");
    if (system) {
      // The template strips the system text and the message as one text.
      std::string both = "<<SYS>>\n";
      both.append(*system).append("\n<</SYS>>\n\n").append(message.content);
      script.Text(StripSpace(both));
      system.reset();
    } else {
      script.Text(StripSpace(message.content));
    }
    script.Text(" [/INST]");
  }
  return {};
}

std::optional<BrokenReason> WriteLlama3(std::span<const Message> messages, DocumentScript& script) {
  script.Bos();
  for (const Message& message : messages) {
    script.Special(kLlama3Tokens[0]);
    script.Text(message.role);
    script.Special(kLlama3Tokens[1]);
    script.Text("\n\n");
    script.Text(StripSpace(message.content), message.trained);
    script.Special(kLlama3Tokens[2], message.trained);
  }
  return {};
}

std::optional<BrokenReason> WriteChatml(std::span<const Message> messages, DocumentScript& script) {
  for (const Message& message : messages) {
    script.Special(kChatmlTokens[0]);
    script.Text(message.role);
    script.Text("\n");
    script.Text(message.content, message.trained);
    script.Special(kChatmlTokens[1], message.trained);
    script.Text("\n");
  }
  return {};
}

std::optional<BrokenReason> WriteZephyr(std::span<const Message> messages, DocumentScript& script) {
  for (const Message& message : messages) {
    const bool known = message.role == kAssistantRole || message.role == kUserRole || message.role == kSystemRole;
    if (!known) return BrokenReason::kNotChat;
    script.Text("<|");
    script.Text(message.role);
    script.Text("|>\n");
    script.Text(message.content, message.trained);
    script.Eos(message.trained);
    script.Text("\n");
  }
  return {};
}

std::optional<BrokenReason> WriteGemma(std::span<const Message> messages, DocumentScript& script) {
  if (!Alternates(messages)) return BrokenReason::kNotChat;
  script.Bos();
  for (const Message& message : messages) {
    script.Special(kGemmaTokens[0]);
    script.Text(message.role == kAssistantRole ? "model" : message.role);
    script.Text("\n");
    script.Text(StripSpace(message.content), message.trained);
    script.Special(kGemmaTokens[1], message.trained);
    script.Text("\n");
  }
  return {};
}

std::optional<BrokenReason> WriteTurns(std::string_view text, const TurnMarkers& markers, DocumentScript& script) {
  script.Bos();
  bool answers = false, in_answer = false;
  while (!text.empty()) {
    const std::size_t answer = markers.instruction.empty() ? text.rfind(markers.response) : text.find(markers.response);
    const std::size_t prompt = answer == text.npos ? text.size() : answer + markers.response.size();
    script.Text(text.substr(0, prompt));
    text.remove_prefix(prompt);
    const std::size_t next = markers.instruction.empty() ? text.npos : text.find(markers.instruction);
    in_answer = answer != text.npos && next == text.npos;
    const std::size_t end = std::min(next, text.size());
    script.Text(text.substr(0, end), true);
    answers |= end > 0;
    text.remove_prefix(end);
  }
  script.Eos(answers && in_answer);
  if (!answers) return BrokenReason::kNotChat;
  return {};
}

}  // namespace millrace::data
