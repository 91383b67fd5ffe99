#include "millrace/data/documents/template_messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "millrace/base/json.h"
#include "millrace/data/documents/message_members.h"
#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

using jinja::Value;

/// The names of an answer's reasoning. The first one that is there counts.
constexpr std::array<std::string_view, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};
constexpr std::string_view kVariables = "chat_template_kwargs";

Value TextValue(std::string_view text) { return Value::Of(std::string(text)); }

}  // namespace

struct TemplateMessageParser::Rep {
  using Messages = std::vector<TemplateMessage>;
  using Reason = std::optional<BrokenReason>;

  explicit Rep(const ModelTemplate& of) : form(of) {}

  Value BrokenUp(std::string_view text) const {
    std::string copy(text);
    form.specials().Break(copy);
    return Value::Of(std::move(copy));
  }

  /// Returns the value of a JSON value. Errors: kBadMember for a number of more than 63 bits.
  std::expected<Value, BrokenReason> ValueOf(simdjson::dom::element element) const {
    using Type = simdjson::dom::element_type;
    switch (element.type()) {
      case Type::STRING:
        return BrokenUp(std::string_view(element));
      case Type::INT64:
        return Value::Of(std::int64_t(element));
      case Type::UINT64:
        return std::unexpected(BrokenReason::kBadMember);
      case Type::DOUBLE:
        return Value::Of(double(element));
      case Type::BOOL:
        return Value::Of(bool(element));
      case Type::ARRAY: {
        jinja::List items;
        for (simdjson::dom::element item : simdjson::dom::array(element)) {
          auto value = ValueOf(item);
          if (!value) return value;
          items.push_back(*std::move(value));
        }
        return Value::OfList(std::move(items));
      }
      case Type::OBJECT: {
        jinja::Dict members;
        for (const auto member : simdjson::dom::object(element)) {
          auto value = ValueOf(member.value);
          if (!value) return value;
          Assign(members, BrokenUp(member.key), *std::move(value));
        }
        return Value::OfDict(std::move(members));
      }
      default:
        return Value::OfNone();
    }
  }

  /// Returns the value of a member that may also be its text in JSON, as columns of tables have it.
  std::expected<Value, BrokenReason> ListOf(simdjson::dom::element element) const {
    std::string_view text;
    simdjson::dom::array list;
    if (!element.get(text)) {
      const auto parsed = ParseJson(text, "a member");
      if (!parsed || !parsed->is_array()) return std::unexpected(BrokenReason::kBadMember);
      return FromJson(*parsed);
    }
    if (element.get(list)) return std::unexpected(BrokenReason::kBadMember);
    return ValueOf(element);
  }

  std::expected<Value, BrokenReason> FromJson(const Json& json) const {
    if (json.is_string()) return BrokenUp(json.get_ref<const std::string&>());
    if (!json.is_structured()) {
      auto value = Value::FromJson(json);
      if (!value) return std::unexpected(BrokenReason::kBadMember);
      return *std::move(value);
    }
    jinja::List items;
    jinja::Dict members;
    for (const auto& [key, member] : json.items()) {
      auto value = FromJson(member);
      if (!value) return value;
      if (json.is_array()) {
        items.push_back(*std::move(value));
      } else {
        Assign(members, BrokenUp(key), *std::move(value));
      }
    }
    return json.is_array() ? Value::OfList(std::move(items)) : Value::OfDict(std::move(members));
  }

  /// Templates want the arguments of a call as an object. OpenAI's format has its text.
  std::expected<Value, BrokenReason> CallsOf(simdjson::dom::element element) const {
    auto calls = ListOf(element);
    if (!calls) return calls;
    jinja::List items;
    for (const Value& call : calls->sequence()->items) items.push_back(WithArguments(call));
    return Value::OfList(std::move(items));
  }

  Value WithArguments(const Value& call) const {
    if (call.dict() == nullptr) return call;
    jinja::Dict members = *call.dict();
    for (auto& [name, value] : members) {
      if (*name.text() == "function") value = WithArguments(value);
      if (*name.text() != "arguments" || value.text() == nullptr) continue;
      std::string text = *value.text();
      std::erase(text, tokenizer::kSpecialBreak);
      const auto parsed = ParseJson(text, "arguments");
      if (!parsed || !parsed->is_object()) continue;
      if (auto object = FromJson(*parsed)) value = *std::move(object);
    }
    return Value::OfDict(std::move(members));
  }

  /// Appends the messages of a list, whose answers are trained if `trained`.
  Reason AppendTurns(simdjson::dom::element list, bool trained, Messages& into) {
    simdjson::dom::array turns;
    if (list.get(turns)) return BrokenReason::kNotChat;
    for (simdjson::dom::element turn : turns) {
      simdjson::dom::object fields;
      if (turn.get(fields)) return BrokenReason::kNotChat;
      auto message = MessageOf(fields);
      if (!message) return message.error();
      message->trained = message->trained && trained;
      into.push_back(*std::move(message));
    }
    return std::nullopt;
  }

  std::expected<TemplateMessage, BrokenReason> MessageOf(simdjson::dom::object fields) {
    std::string_view role;
    const bool plain = FindText(fields, "role", role);
    if (!plain && !FindText(fields, "from", role)) return std::unexpected(BrokenReason::kNotChat);
    role = RoleOf(role);
    const auto weighed = IsTrained(fields);
    if (!weighed) return std::unexpected(weighed.error());
    TemplateMessage message;
    message.answers = role == kAssistantRole;
    message.trained = message.answers && *weighed;
    masked |= message.answers && !*weighed;
    jinja::Dict members;
    bool has_content = false, says_more = false;
    for (const auto member : fields) {
      const bool is_role = member.key == (plain ? "role" : "from");
      const bool is_content = member.key == (plain ? "content" : "value");
      if (member.key == "weight" || member.key == "train") continue;
      std::expected<Value, BrokenReason> value = TextValue(role);
      if (is_content) {
        value = ContentOf(member.value);
        has_content = value && !value->none();
      } else if (!is_role) {
        if (IsEmpty(member.value)) continue;
        value = MemberOf(member.key, member.value, role);
        says_more = true;
      }
      if (!value) return std::unexpected(value.error());
      Assign(members,
             is_role      ? TextValue("role")
             : is_content ? TextValue("content")
                          : BrokenUp(member.key),
             *std::move(value));
    }
    AddReasoning(members);
    // Templates print "None" for null.
    if (!has_content && !(message.answers && says_more)) return std::unexpected(BrokenReason::kNotChat);
    message.value = Value::OfDict(std::move(members));
    return message;
  }

  /// Gives reasoning the names that templates read, as transformers does.
  static void AddReasoning(jinja::Dict& members) {
    for (const std::string_view name : kReasoning) {
      const Value* said = Find(members, name);
      if (said == nullptr) continue;
      const Value reasoning = *said;
      if (Find(members, "thinking") == nullptr) members.insert(members.begin(), {TextValue("thinking"), reasoning});
      Assign(members, TextValue("reasoning_content"), reasoning);
      return;
    }
  }

  bool Renders(std::string_view name) const {
    if (std::ranges::find(kReasoning, name) == kReasoning.end()) return form.Names(name);
    return std::ranges::any_of(kReasoning, [&](std::string_view alias) { return form.Names(alias); });
  }

  std::expected<Value, BrokenReason> MemberOf(std::string_view name, simdjson::dom::element element,
                                              std::string_view role) {
    const bool named = Renders(name);
    const bool of_call = name == "tool_call_id" || (name == "name" && role == "tool");
    if (!named && !of_call) {
      if (const auto refused = UnrenderedReason(name)) return std::unexpected(*refused);
      if (ignored.size() < kMaxIgnored) ignored.emplace(name);
    }
    return name == "tool_calls" ? CallsOf(element) : ValueOf(element);
  }

  /// Returns the text of a content, whose parts are joined; none for null.
  std::expected<Value, BrokenReason> ContentOf(simdjson::dom::element element) const {
    std::string_view text;
    simdjson::dom::array parts;
    if (element.is_null()) return Value::OfNone();
    if (!element.get(text)) return BrokenUp(text);
    if (element.get(parts)) return std::unexpected(BrokenReason::kNotChat);
    std::string whole;
    if (auto broken = JoinParts(parts, whole)) return std::unexpected(*broken);
    return BrokenUp(whole);
  }

  /// Reads what a record says beside its messages.
  Reason ReadRecord(simdjson::dom::object record, TemplateConversation& into) {
    simdjson::dom::element value;
    for (const std::string_view name : RecordMembers()) {
      if (!FindLast(record, name, value) || IsEmpty(value)) continue;
      if (name != "tools" || !form.Names("tools")) return UnrenderedRecordReason(name);
      auto tools = ListOf(value);
      if (!tools) return tools.error();
      if (!tools->sequence()->items.empty()) into.tools = *std::move(tools);
    }
    if (!FindLast(record, kVariables, value) || IsEmpty(value)) return std::nullopt;
    simdjson::dom::object object;
    if (value.get(object)) return BrokenReason::kBadMember;
    auto variables = ValueOf(value);
    if (!variables) return variables.error();
    into.variables = *variables->dict();
    return std::nullopt;
  }

  Reason Check(const Messages& all) const {
    if (all.empty()) return BrokenReason::kEmpty;
    if (std::ranges::any_of(all, &TemplateMessage::trained)) return std::nullopt;
    return masked ? BrokenReason::kNoLabel : BrokenReason::kNotChat;
  }

  const ModelTemplate& form;
  JsonRecordParser json;
  bool masked = false;  ///< an answer of the record has the weight 0
  std::set<std::string, std::less<>> ignored;
};

TemplateMessageParser::TemplateMessageParser(const ModelTemplate& form) : rep_(new Rep(form)) {}
TemplateMessageParser::~TemplateMessageParser() = default;

const std::set<std::string, std::less<>>& TemplateMessageParser::ignored_members() const { return rep_->ignored; }

std::vector<std::string> TemplateMessageParser::OtherMembers() { return {std::string(kVariables)}; }

std::expected<TemplateConversation, BrokenReason> TemplateMessageParser::Parse(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  rep_->masked = false;
  TemplateConversation made;
  simdjson::dom::element list, completion;
  Rep::Reason broken = rep_->ReadRecord(*parsed, made);
  if (broken) return std::unexpected(*broken);
  if (FindLast(*parsed, "messages", list) || FindLast(*parsed, "conversations", list)) {
    broken = rep_->AppendTurns(list, true, made.messages);
  } else if (FindLast(*parsed, "prompt", list) && FindLast(*parsed, "completion", completion)) {
    broken = rep_->AppendTurns(list, false, made.messages);
    if (!broken) broken = rep_->AppendTurns(completion, true, made.messages);
  } else {
    broken = BrokenReason::kMissingField;
  }
  if (!broken) broken = rep_->Check(made.messages);
  if (broken) return std::unexpected(*broken);
  return made;
}

std::expected<std::pair<TemplateConversation, TemplateConversation>, BrokenReason> TemplateMessageParser::ParsePair(
    std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  rep_->masked = false;
  TemplateConversation chosen;
  if (auto broken = rep_->ReadRecord(*parsed, chosen)) return std::unexpected(*broken);
  simdjson::dom::element prompt, list;
  simdjson::dom::array turns;
  if (FindLast(*parsed, "prompt", prompt) && !prompt.get(turns)) {
    if (auto broken = rep_->AppendTurns(prompt, false, chosen.messages)) return std::unexpected(*broken);
  }
  TemplateConversation rejected = chosen;
  for (const auto& [name, side] : {std::pair("chosen", &chosen), {"rejected", &rejected}}) {
    if (!FindLast(*parsed, name, list)) return std::unexpected(BrokenReason::kMissingField);
    if (auto broken = rep_->AppendTurns(list, true, side->messages)) return std::unexpected(*broken);
  }
  for (std::size_t i = 0; i < std::min(chosen.messages.size(), rejected.messages.size()); ++i) {
    if (!Equal(chosen.messages[i].value, rejected.messages[i].value)) break;
    chosen.messages[i].trained = rejected.messages[i].trained = false;
  }
  for (const TemplateConversation* side : {&chosen, &rejected}) {
    if (auto broken = rep_->Check(side->messages)) return std::unexpected(*broken);
  }
  return std::pair(std::move(chosen), std::move(rejected));
}

}  // namespace millrace::data
