#include "millrace/serve/protocol/messages.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::serve {
namespace {

std::unexpected<ApiError> Wrong(std::string message, std::string param) {
  return std::unexpected(ApiError{.message = std::move(message), .param = std::move(param)});
}

/// Returns the text of a list of blocks, or of a string. Nothing if a block is no text.
std::optional<std::string> TextOf(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& block : content) {
    const Json* piece = JsonFind(block, "text");
    if (JsonString(block, "type") != "text" || piece == nullptr || !piece->is_string()) return std::nullopt;
    text += piece->get_ref<const std::string&>();
  }
  return text;
}

/// Adds the messages that one of Anthropic's becomes: results of tools are messages of their own.
Parsed<void> AddMessage(const Json& from, const std::string& where, Json& messages) {
  const std::string role = JsonString(from, "role").value_or("");
  const Json* content = JsonFind(from, "content");
  if (role.empty() || content == nullptr) return Wrong(where + " should be an object with a role and a content", where);
  Json words = {{"role", role}, {"content", ""}};
  if (content->is_string()) {
    words["content"] = *content;
    messages.push_back(std::move(words));
    return {};
  }
  if (!content->is_array()) return Wrong(where + ": content should be a string or a list of blocks", where);
  std::string text;
  bool has_results = false;
  Json calls = Json::array();
  for (const Json& block : *content) {
    const std::string type = JsonString(block, "type").value_or("");
    if (type == "text") {
      text += TextOf(Json::array({block})).value_or("");
    } else if (type == "tool_use") {
      const Json* input = JsonFind(block, "input");
      calls.push_back({{"id", JsonString(block, "id").value_or("")},
                       {"type", "function"},
                       {"function",
                        {{"name", JsonString(block, "name").value_or("")},
                         {"arguments", input != nullptr && input->is_object() ? *input : Json::object()}}}});
    } else if (type == "tool_result") {
      const Json* result = JsonFind(block, "content");
      const auto said = result != nullptr ? TextOf(*result) : std::string();
      if (!said) return Wrong(where + ": a tool_result should be text; this server takes no images or files", where);
      has_results = true;
      messages.push_back(
          {{"role", "tool"}, {"tool_call_id", JsonString(block, "tool_use_id").value_or("")}, {"content", *said}});
    } else if (type != "thinking" && type != "redacted_thinking") {
      return Wrong(fmt::format("{}: this server takes no block of the type \"{}\"", where, type), where);
    }
  }
  words["content"] = text;
  if (!calls.empty()) words["tool_calls"] = std::move(calls);
  if (!text.empty() || words.contains("tool_calls") || !has_results) messages.push_back(std::move(words));
  return {};
}

Parsed<Json> Tools(const Json& given) {
  if (!given.is_array()) return Wrong("tools should be a list", "tools");
  Json tools = Json::array();
  for (const Json& tool : given) {
    const Json* schema = JsonFind(tool, "input_schema");
    if (schema == nullptr) return Wrong("a tool should have a name and an input_schema", "tools");
    Json function = {{"name", JsonString(tool, "name").value_or("")}, {"parameters", *schema}};
    if (const Json* description = JsonFind(tool, "description")) function["description"] = *description;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

Parsed<void> AddToolChoice(const Json& choice, Json& chat) {
  const std::string type = JsonString(choice, "type").value_or("");
  if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", JsonString(choice, "name").value_or("")}}}};
  } else if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else {
    return Wrong("tool_choice's type should be auto, any, tool or none", "tool_choice");
  }
  const Json* one = JsonFind(choice, "disable_parallel_tool_use");
  if (one != nullptr && *one == true) chat["parallel_tool_calls"] = false;
  return {};
}

std::string Event(const char* name, Json data) {
  Json named = {{"type", name}};
  for (auto& [key, value] : data.items()) named[key] = std::move(value);
  return fmt::format("event: {}\n{}", name, ServerSentEvent(named));
}

/// Returns what "finish_reason" is called here.
std::string_view StopReason(std::string_view finish) {
  if (finish == "length") return "max_tokens";
  return finish == "tool_calls" ? "tool_use" : "end_turn";
}

Json UsageOf(const Usage& usage) {
  return {{"input_tokens", usage.prompt - usage.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached},
          {"output_tokens", usage.completion}};
}

Json Head(const AnswerHead& head, Json content, const Json& reason, const Usage& usage) {
  return {{"id", head.id},      {"type", "message"},     {"role", "assistant"},     {"model", head.model},
          {"content", content}, {"stop_reason", reason}, {"stop_sequence", Json()}, {"usage", UsageOf(usage)}};
}

}  // namespace

Parsed<ChatRequest> ParseMessages(const Json& body, const RequestLimits& limits) {
  if (!body.is_object()) return Wrong("the body should be a JSON object", "");
  Json chat = Json::object(), messages = Json::array();
  for (const auto& [key, value] : body.items()) {
    if (key == "system") {
      const auto text = TextOf(value);
      if (!text) return Wrong("system should be a string or a list of text blocks", key);
      messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *text}});
    } else if (key == "messages" && value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (auto added = AddMessage(value[i], fmt::format("messages[{}]", i), messages); !added) {
          return std::unexpected(added.error());
        }
      }
    } else if (key == "stop_sequences") {
      chat["stop"] = value;
    } else if (key == "tools") {
      auto tools = Tools(value);
      if (!tools) return std::unexpected(tools.error());
      chat["tools"] = *std::move(tools);
    } else if (key == "tool_choice") {
      if (auto added = AddToolChoice(value, chat); !added) return std::unexpected(added.error());
    } else if (key != "thinking" && key != "context_management" && key != "output_config") {
      chat[key] = value;
    }
  }
  if (!chat.contains("max_tokens")) return Wrong("max_tokens is required", "max_tokens");
  chat["messages"] = std::move(messages);
  return ParseChat(chat, limits);
}

Json MessagesError(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 403 ? "permission_error"
                     : error.status == 404 ? "not_found_error"
                     : error.status == 413 ? "request_too_large"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status == 503 ? "overloaded_error"
                     : error.status >= 500 ? "api_error"
                                           : "invalid_request_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", error.message}}}};
}

std::string MessageEvents::Failure(const ApiError& error) const {
  return "event: error\n" + ServerSentEvent(MessagesError(error));
}

Json MessagesAnswer(const AnswerHead& head, const AnswerPiece& piece, const Usage& usage) {
  Json content = Json::array();
  if (!piece.text.empty() || piece.calls.empty()) content.push_back({{"type", "text"}, {"text", piece.text}});
  for (const ToolCallPart& call : piece.calls) {
    auto input = ParseJson(call.arguments, "the arguments of a call");
    content.push_back({{"type", "tool_use"},
                       {"id", call.id},
                       {"name", call.name},
                       {"input", input && input->is_object() ? *input : Json::object()}});
  }
  // A named tool's call "stops" in OpenAI's words.
  const std::string_view reason =
      piece.calls.empty() || piece.finish == "length" ? StopReason(piece.finish) : "tool_use";
  return Head(head, std::move(content), reason, usage);
}

std::string MessageEvents::Begin(const Usage& usage) const {
  return Event("message_start", {{"message", Head(head_, Json::array(), Json(), usage)}});
}

std::string MessageEvents::Close() {
  if (!std::exchange(in_block_, false)) return "";
  in_text_ = false;
  return Event("content_block_stop", {{"index", blocks_ - 1}});
}

std::string MessageEvents::Open(Json block) {
  std::string events = Close();
  in_block_ = true;
  events += Event("content_block_start", {{"index", blocks_}, {"content_block", std::move(block)}});
  ++blocks_;
  return events;
}

std::string MessageEvents::Delta(Json delta) const {
  return Event("content_block_delta", {{"index", blocks_ - 1}, {"delta", std::move(delta)}});
}

std::string MessageEvents::Text(std::string_view text) {
  std::string events;
  if (!in_text_) events = Open({{"type", "text"}, {"text", ""}});
  in_text_ = true;
  return events + Delta({{"type", "text_delta"}, {"text", text}});
}

std::string MessageEvents::Call(const ToolCallPart& part) {
  std::string events;
  if (!part.id.empty()) {
    events = Open({{"type", "tool_use"}, {"id", part.id}, {"name", part.name}, {"input", Json::object()}});
  }
  if (!part.arguments.empty()) {
    events += Delta({{"type", "input_json_delta"}, {"partial_json", part.arguments}});
  }
  return events;
}

std::string MessageEvents::End(std::string_view finish, const Usage& usage) {
  const bool called = blocks_ > 0 && !in_text_ && finish != "length";
  std::string events = Close();
  events += Event("message_delta",
                  {{"delta", {{"stop_reason", called ? "tool_use" : StopReason(finish)}, {"stop_sequence", Json()}}},
                   {"usage", UsageOf(usage)}});
  return events + Event("message_stop", Json::object());
}

}  // namespace millrace::serve
