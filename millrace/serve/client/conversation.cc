#include "millrace/serve/client/conversation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kFormat = "millrace-chat";
constexpr std::int64_t kVersion = 1;
/// A file of the page's: its messages are objects of few members.
constexpr JsonLimits kFileLimits{.depth = 16, .bytes = 64 * kMiB, .values = 1024 * 1024};

struct Parameter {
  std::string_view name;
  double least, most;
  bool whole;
};

constexpr Parameter kParameters[] = {
    {"temperature", 0, 100, false},
    {"top_p", 0, 1, false},
    {"top_k", 0, 1 << 30, true},
    {"min_p", 0, 1, false},
    {"max_tokens", 1, 1 << 30, true},
    {"seed", 0, 9007199254740991.0, true},  // 2^53 - 1, the largest whole number of all JSON parsers
};

/// The interface's own default is 16 tokens.
constexpr int kPlainMaxTokens = 256;

Error NotOurs(std::string_view what, std::string_view why) {
  return {Code::kInvalidArgument, fmt::format("{} was not exported by the chat page: {}", what, why)};
}

Json MessageJson(const ChatMessage& message, const std::string& id, const std::string& parent, std::int64_t now_ms) {
  Json json = {
      {"id", id}, {"parent", parent}, {"role", message.role}, {"content", message.content}, {"created", now_ms}};
  if (!message.model.empty()) json["model"] = message.model;
  return json;
}

std::string TitleOf(const std::vector<ChatMessage>& messages) {
  constexpr std::size_t kLongest = 60;
  std::string title = messages.empty() ? "Conversation" : messages.front().content;
  title = title.substr(0, title.find('\n'));
  if (title.size() <= kLongest) return title;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(title[end]) & 0xC0) == 0x80) --end;  // whole characters
  return title.substr(0, end) + "…";
}

/// The messages from the first one to the leaf.
Result<std::vector<ChatMessage>> Branch(const Json& conversation, std::string_view what) {
  const Json* messages = JsonFind(conversation, "messages");
  if (messages == nullptr || !messages->is_array()) return Fail(NotOurs(what, "a conversation has no messages"));
  std::map<std::string, const Json*> by_id;
  std::string leaf;
  for (const Json& message : *messages) {
    for (const char* name : {"id", "parent", "role", "content"}) MR_TRY(JsonString(message, name));
    leaf = message["id"].get<std::string>();
    const std::string role = message["role"].get<std::string>();
    const std::string parent = message["parent"].get<std::string>();
    // Parents come first, so that no message is its own ancestor.
    if ((role != "user" && role != "assistant") || leaf.empty() || (!parent.empty() && !by_id.contains(parent)) ||
        !by_id.emplace(leaf, &message).second) {
      return Fail(NotOurs(what, "a message has no known form"));
    }
  }
  if (auto chosen = JsonString(conversation, "leaf"); chosen && by_id.contains(*chosen)) leaf = *chosen;
  std::vector<ChatMessage> branch;
  while (!leaf.empty()) {
    const Json& message = *by_id.at(leaf);
    branch.push_back({message["role"].get<std::string>(), message["content"].get<std::string>(),
                      JsonString(message, "model").value_or("")});
    leaf = message["parent"].get<std::string>();
  }
  std::ranges::reverse(branch);
  // An answer that failed before its first word is none.
  std::erase_if(branch, [](const ChatMessage& message) { return message.content.empty(); });
  return branch;
}

}  // namespace

std::vector<std::string_view> ParameterNames() {
  std::vector<std::string_view> names;
  for (const Parameter& parameter : kParameters) names.push_back(parameter.name);
  return names;
}

Status Conversation::SetParameter(std::string_view name, std::string_view text) {
  const auto* known = std::ranges::find(kParameters, name, &Parameter::name);
  if (known == std::end(kParameters)) {
    return Fail(Code::kInvalidArgument, "{}", UnknownName("setting", name, ParameterNames()));
  }
  text = Trim(text);
  if (text == "default") {
    parameters.erase(std::string(name));
    return {};
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !(value >= known->least) ||
      value > known->most || (known->whole && value != std::floor(value))) {
    return Fail(Code::kInvalidArgument, "{} is a {} from {} to {}, or `default`; it cannot be \"{}\"", name,
                known->whole ? "whole number" : "number", known->least, known->most, text);
  }
  if (known->whole) {
    parameters[std::string(name)] = static_cast<std::int64_t>(value);
  } else {
    parameters[std::string(name)] = value;
  }
  return {};
}

Conversation::Request Conversation::NextRequest(const std::string& model, int context) const {
  Json body = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (!model.empty()) body["model"] = model;
  for (const auto& [name, value] : parameters.items()) body[name] = value;
  if (!stop.empty()) body["stop"] = stop;
  if (plain_text) {
    std::string prompt = system;
    for (const ChatMessage& message : messages) {
      if (!prompt.empty()) prompt += '\n';
      prompt += message.content;
    }
    body["prompt"] = std::move(prompt);
    if (!body.contains("max_tokens")) {
      body["max_tokens"] = context > 0 ? std::max(1, std::min(kPlainMaxTokens, context / 2)) : kPlainMaxTokens;
    }
    return {"/v1/completions", std::move(body)};
  }
  Json list = Json::array();
  if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
  for (const ChatMessage& message : messages) {
    // Chat templates want roles in turn: messages without an answer are joined.
    if (!list.empty() && list.back()["role"] == message.role) {
      list.back()["content"] = list.back()["content"].get<std::string>() + "\n\n" + message.content;
    } else {
      list.push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  body["messages"] = std::move(list);
  return {"/v1/chat/completions", std::move(body)};
}

bool Conversation::DropAnswer() {
  if (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
  return !messages.empty() && messages.back().role == "user";
}

std::string Conversation::Save(double now_s) const {
  const auto now_ms = static_cast<std::int64_t>(now_s * 1000);
  Json list = Json::array();
  std::string parent, model;
  for (const ChatMessage& message : messages) {
    const std::string id = SecureHex(8);
    list.push_back(MessageJson(message, id, parent, now_ms));
    parent = id;
    if (!message.model.empty()) model = message.model;
  }
  Json settings = {{"system", system}, {"form", plain_text ? "text" : "chat"}, {"stop", stop}};
  for (const auto& [name, value] : parameters.items()) settings[name] = value;
  Json conversation = {
      {"id", SecureHex(8)}, {"title", TitleOf(messages)}, {"named", false}, {"created", now_ms}, {"updated", now_ms},
      {"model", model},     {"settings", settings},       {"leaf", parent}, {"messages", list}};
  return DumpJsonPretty({{"format", kFormat}, {"version", kVersion}, {"conversations", Json::array({conversation})}}) +
         "\n";
}

Result<Conversation> Conversation::Load(std::string_view text, std::string_view what) {
  const Json file = MR_TRY(ParseJson(text, what, kFileLimits));
  if (JsonString(file, "format").value_or("") != kFormat) return Fail(NotOurs(what, "its format has another name"));
  if (const std::int64_t version = MR_TRY(JsonInt(file, "version")); version != kVersion) {
    return Fail(NotOurs(what, fmt::format("its version is {}, and this program reads version {}", version, kVersion)));
  }
  const Json* conversations = JsonFind(file, "conversations");
  if (conversations == nullptr || !conversations->is_array() || conversations->empty()) {
    return Fail(NotOurs(what, "it has no conversation"));
  }
  const auto updated = [](const Json& one) { return JsonNumber(one, "updated").value_or(0); };
  const Json& newest = *std::ranges::max_element(*conversations, {}, updated);
  Conversation loaded;
  loaded.messages = MR_TRY(Branch(newest, what));
  const Json* settings = JsonFind(newest, "settings");
  if (settings == nullptr) return loaded;
  loaded.system = JsonString(*settings, "system").value_or("");
  loaded.plain_text = JsonString(*settings, "form").value_or("") == "text";
  for (const std::string_view name : ParameterNames()) {
    if (const Json* value = JsonFind(*settings, name); value != nullptr && value->is_number()) {
      MR_TRY(loaded.SetParameter(name, value->dump()));
    }
  }
  if (const Json* stop = JsonFind(*settings, "stop"); stop != nullptr && stop->is_array()) {
    for (const Json& one : *stop) {
      if (one.is_string()) loaded.stop.push_back(one.get<std::string>());
    }
  }
  return loaded;
}

}  // namespace millrace::serve
