#include "millrace/serve/protocol/responses.h"

#include <fmt/format.h>

#include <optional>
#include <tuple>
#include <utility>

#include "millrace/base/hash/random.h"

namespace millrace::serve {
namespace {

std::unexpected<ApiError> RefuseResponse(std::string message, std::string param) {
  return std::unexpected(ApiError{.message = std::move(message), .param = std::move(param)});
}

/// Returns the text of a content: a string, or parts that are texts. Nothing if a part is something else.
std::optional<std::string> ItemText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const std::string type = JsonString(part, "type").value_or("");
    if (type != "input_text" && type != "output_text" && type != "refusal") return std::nullopt;
    const Json* piece = JsonFind(part, type == "refusal" ? "refusal" : "text");
    if (piece == nullptr || !piece->is_string()) return std::nullopt;
    text += piece->get_ref<const std::string&>();
  }
  return text;
}

/// Adds a call to the answer before it, or to one of its own.
void AddInputCall(const Json& item, Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  Json call = {
      {"id", JsonString(item, "call_id").value_or("")},
      {"type", "function"},
      {"function",
       {{"name", JsonString(item, "name").value_or("")}, {"arguments", JsonString(item, "arguments").value_or("{}")}}}};
  messages.back()["tool_calls"].push_back(std::move(call));
}

Parsed<void> AddInputItem(const Json& item, const std::string& where, Json& messages) {
  const std::string type = JsonString(item, "type").value_or("message");
  if (type == "reasoning") return {};
  if (type == "function_call") {
    AddInputCall(item, messages);
    return {};
  }
  const bool is_output = type == "function_call_output";
  if (!is_output && type != "message") {
    return RefuseResponse(fmt::format("{}: this server takes no item of the type \"{}\"", where, type), where);
  }
  const Json* content = JsonFind(item, is_output ? "output" : "content");
  const auto text = content != nullptr ? ItemText(*content) : std::nullopt;
  if (!text) return RefuseResponse(where + " should have a text; this server takes no images, sounds or files", where);
  Json message = {{"role", is_output ? "tool" : JsonString(item, "role").value_or("")}, {"content", *text}};
  if (is_output) message["tool_call_id"] = JsonString(item, "call_id").value_or("");
  messages.push_back(std::move(message));
  return {};
}

Parsed<Json> InputMessages(const Json& body, const Json& before) {
  Json messages = Json::array();
  const Json *instructions = JsonFind(body, "instructions"), *input = JsonFind(body, "input");
  if (instructions != nullptr && instructions->is_string()) {
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  messages.insert(messages.end(), before.begin(), before.end());
  if (input != nullptr && input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (input == nullptr || !input->is_array())
    return RefuseResponse("input should be a string or a list of items", "input");
  for (std::size_t i = 0; i < input->size(); ++i) {
    if (auto added = AddInputItem((*input)[i], fmt::format("input[{}]", i), messages); !added) {
      return std::unexpected(added.error());
    }
  }
  return messages;
}

Parsed<Json> ResponseTools(const Json& given) {
  if (!given.is_array()) return RefuseResponse("tools should be a list", "tools");
  Json tools = Json::array();
  for (const Json& tool : given) {
    const std::string type = JsonString(tool, "type").value_or("");
    if (type != "function") {
      return RefuseResponse(fmt::format("this server has no tool of the type \"{}\"; it calls functions", type),
                            "tools");
    }
    Json function = Json::object();
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      if (const Json* member = JsonFind(tool, key)) function[key] = *member;
    }
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

/// Writes "text" as the response_format of a conversation.
void AddFormat(const Json& text, Json& chat) {
  if (const Json* verbosity = JsonFind(text, "verbosity")) chat["verbosity"] = *verbosity;
  const Json* format = JsonFind(text, "format");
  if (format == nullptr) return;
  chat["response_format"] = *format;
  if (JsonString(*format, "type") == "json_schema") {
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", *format}};
  }
}

Json ResponseUsage(const Usage& usage) {
  return {{"input_tokens", usage.prompt},
          {"input_tokens_details", {{"cached_tokens", usage.cached}}},
          {"output_tokens", usage.completion},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt + usage.completion}};
}

}  // namespace

Parsed<ChatRequest> ParseResponses(const Json& body, const RequestLimits& limits, const Json& before) {
  if (!body.is_object()) return RefuseResponse("the body should be a JSON object", "");
  auto messages = InputMessages(body, before);
  if (!messages) return std::unexpected(messages.error());
  Json chat = {{"messages", *std::move(messages)}};
  for (const auto& [key, value] : body.items()) {
    if (value.is_null()) continue;
    if (key == "conversation") {
      return RefuseResponse("conversation: this server keeps none; previous_response_id names a response", key);
    } else if (key == "max_output_tokens") {
      chat["max_tokens"] = value;
    } else if (key == "tools") {
      auto tools = ResponseTools(value);
      if (!tools) return std::unexpected(tools.error());
      chat["tools"] = *std::move(tools);
    } else if (key == "tool_choice" && value.is_object()) {
      chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", JsonString(value, "name").value_or("")}}}};
    } else if (key == "text") {
      AddFormat(value, chat);
    } else if (key == "reasoning") {
      if (const Json* effort = JsonFind(value, "effort")) chat["reasoning_effort"] = *effort;
    } else if (key == "background" && value != false) {
      return RefuseResponse("background is not supported by this server; leave it out", key);
    } else if (key != "input" && key != "instructions" && key != "include" && key != "truncation" &&
               key != "background" && key != "previous_response_id" && key != "max_tool_calls" &&
               key != "stream_options") {
      chat[key] = value;
    }
  }
  auto request = ParseChat(chat, limits);
  if (!request) return request;
  request->echoed = {{"parallel_tool_calls", true}, {"store", true}, {"tool_choice", "auto"}, {"tools", Json::array()}};
  for (const char* key : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
                          "previous_response_id", "store", "temperature", "text", "tool_choice", "tools", "top_p"}) {
    if (const Json* member = JsonFind(body, key); member != nullptr && !member->is_null())
      request->echoed[key] = *member;
  }
  return request;
}

Json ResponseAnswer(const AnswerHead& head, const Json& echoed, const AnswerPiece& piece, const Usage& usage) {
  ResponseEvents events(head, echoed);
  if (!piece.text.empty()) std::ignore = events.Text(piece.text);
  for (const ToolCallPart& call : piece.calls) std::ignore = events.Call(call);
  std::ignore = events.End(piece.finish, usage);
  return events.Response(piece.finish == "length" ? "incomplete" : "completed", usage);
}

Json ResponseMessage(const Json& output) {
  Json messages = Json::array({{{"role", "assistant"}, {"content", ""}}});
  for (const Json& item : output) {
    if (item["type"] == "message") messages.back()["content"] = item["content"][0]["text"];
    if (item["type"] == "function_call") AddInputCall(item, messages);
  }
  return messages.back();
}

Json ResponseEvents::Response(std::string_view status, const Usage& usage) const {
  Json response = {{"id", head_.id},       {"object", "response"}, {"created_at", head_.created},
                   {"status", status},     {"error", nullptr},     {"incomplete_details", nullptr},
                   {"model", head_.model}, {"output", output_},    {"usage", nullptr}};
  if (status == "incomplete") response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (status != "in_progress") response["usage"] = ResponseUsage(usage);
  for (const auto& [key, value] : echoed_.items()) response[key] = value;
  return response;
}

std::string ResponseEvents::Event(const char* type, Json data) {
  Json event = {{"type", type}, {"sequence_number", events_++}};
  for (auto& [key, value] : data.items()) event[key] = std::move(value);
  return fmt::format("event: {}\n{}", type, ServerSentEvent(event));
}

Json ResponseEvents::Place() const { return {{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}}; }

std::string ResponseEvents::Begin(const Usage& usage) {
  std::string events = Event("response.created", {{"response", Response("in_progress", usage)}});
  return events + Event("response.in_progress", {{"response", Response("in_progress", usage)}});
}

std::string ResponseEvents::Open(Json item) {
  std::string events = Close();
  open_ = true;
  output_.push_back(item);
  return events +
         Event("response.output_item.added", {{"output_index", output_.size() - 1}, {"item", std::move(item)}});
}

std::string ResponseEvents::Close() {
  if (!open_) return "";
  std::string events;
  Json& item = output_.back();
  item["status"] = "completed";
  Json done = Place();
  if (in_text()) {
    const Json& part = item["content"][0];
    done["content_index"] = 0;
    Json text = done, whole = done;
    text["text"] = part["text"];
    text["logprobs"] = Json::array();
    whole["part"] = part;
    events = Event("response.output_text.done", std::move(text));
    events += Event("response.content_part.done", std::move(whole));
  } else {
    done["name"] = item["name"];
    done["arguments"] = item["arguments"];
    events = Event("response.function_call_arguments.done", std::move(done));
  }
  open_ = false;
  return events + Event("response.output_item.done", {{"output_index", output_.size() - 1}, {"item", item}});
}

std::string ResponseEvents::Text(std::string_view text) {
  std::string events;
  const Json empty = {
      {"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  if (!in_text()) {
    events = Open({{"id", "msg_" + SecureHex(12)},
                   {"type", "message"},
                   {"role", "assistant"},
                   {"status", "in_progress"},
                   {"content", Json::array()}});
    output_.back()["content"].push_back(empty);
    Json added = Place();
    added["content_index"] = 0;
    added["part"] = empty;
    events += Event("response.content_part.added", std::move(added));
  }
  Json& whole = output_.back()["content"][0]["text"];
  whole = whole.get<std::string>().append(text);
  Json delta = Place();
  delta["content_index"] = 0;
  delta["delta"] = text;
  delta["logprobs"] = Json::array();
  return events + Event("response.output_text.delta", std::move(delta));
}

std::string ResponseEvents::Call(const ToolCallPart& part) {
  std::string events;
  if (!part.id.empty()) {
    events = Open({{"id", "fc_" + SecureHex(12)},
                   {"type", "function_call"},
                   {"call_id", part.id},
                   {"name", part.name},
                   {"arguments", ""},
                   {"status", "in_progress"}});
  }
  if (part.arguments.empty()) return events;
  Json& whole = output_.back()["arguments"];
  whole = whole.get<std::string>().append(part.arguments);
  Json delta = Place();
  delta["delta"] = part.arguments;
  return events + Event("response.function_call_arguments.delta", std::move(delta));
}

std::string ResponseEvents::End(std::string_view finish, const Usage& usage) {
  const bool is_cut = finish == "length";
  std::string events = Close();
  return events + Event(is_cut ? "response.incomplete" : "response.completed",
                        {{"response", Response(is_cut ? "incomplete" : "completed", usage)}});
}

std::string ResponseEvents::Failure(const ApiError& error) {
  return Event("error", {{"code", error.code}, {"message", error.message}, {"param", nullptr}});
}

}  // namespace millrace::serve
