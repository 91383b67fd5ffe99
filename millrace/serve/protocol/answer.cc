#include "millrace/serve/protocol/answer.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::serve {
namespace {

Json Bytes(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json ChatLogprobs(const std::vector<TokenLogprobs>& tokens) {
  const auto entry = [](const std::string& text, double logprob) -> Json {
    return {{"token", text}, {"logprob", logprob}, {"bytes", Bytes(text)}};
  };
  Json content = Json::array();
  for (const TokenLogprobs& token : tokens) {
    Json one = entry(token.text, token.logprob.value_or(0));
    one["top_logprobs"] = Json::array();
    for (const auto& [text, logprob] : token.likeliest) one["top_logprobs"].push_back(entry(text, logprob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

Json CompletionLogprobs(const std::vector<TokenLogprobs>& tokens, std::size_t offset) {
  Json texts = Json::array(), logprobs = Json::array(), likeliest = Json::array(), offsets = Json::array();
  for (const TokenLogprobs& token : tokens) {
    texts.push_back(token.text);
    logprobs.push_back(token.logprob ? Json(*token.logprob) : Json());
    Json best = Json::object();
    for (const auto& [text, logprob] : token.likeliest) best[text] = logprob;
    likeliest.push_back(token.logprob ? std::move(best) : Json());
    offsets.push_back(offset);
    offset += CountCodePoints(token.text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

Json ToolCalls(bool chunk, std::span<const ToolCallPart> parts) {
  Json calls = Json::array();
  for (const ToolCallPart& part : parts) {
    Json call = Json::object();
    if (chunk) call["index"] = part.index;
    if (!part.id.empty()) {
      call["id"] = part.id;
      call["type"] = "function";
      call["function"]["name"] = part.name;
    }
    call["function"]["arguments"] = part.arguments;
    calls.push_back(std::move(call));
  }
  return calls;
}

Json Finish(std::string_view finish) { return finish.empty() ? Json(nullptr) : Json(finish); }

}  // namespace

std::size_t CountCodePoints(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

Json Usage::ToJson() const {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

Json Choice(AnswerForm form, bool chunk, const AnswerPiece& piece) {
  if (form == AnswerForm::kInputs) return {{"generated_text", piece.text}};
  if (form == AnswerForm::kCompletion) {
    return {{"index", piece.index},
            {"text", piece.text},
            {"logprobs", piece.logprobs != nullptr ? CompletionLogprobs(*piece.logprobs, piece.text_offset) : Json()},
            {"finish_reason", Finish(piece.finish)}};
  }
  Json message = Json::object();
  if (!chunk) message["role"] = "assistant";
  if (!chunk || !piece.text.empty()) message["content"] = piece.text;
  if (!piece.calls.empty()) {
    if (!chunk && piece.text.empty()) message["content"] = nullptr;
    message["tool_calls"] = ToolCalls(chunk, piece.calls);
  }
  return {{"index", piece.index},
          {chunk ? "delta" : "message", std::move(message)},
          {"logprobs", piece.logprobs != nullptr ? ChatLogprobs(*piece.logprobs) : Json()},
          {"finish_reason", Finish(piece.finish)}};
}

std::optional<Json> FirstChoice(AnswerForm form, std::size_t index) {
  if (form != AnswerForm::kChat) return std::nullopt;
  return Json{{"index", index},
              {"delta", {{"role", "assistant"}, {"content", ""}}},
              {"logprobs", nullptr},
              {"finish_reason", nullptr}};
}

Json Answer(AnswerForm form, bool chunk, const AnswerHead& head, Json choices, const std::optional<Usage>& usage) {
  if (form == AnswerForm::kInputs) return choices;
  const char* object = form == AnswerForm::kCompletion ? "text_completion"
                       : chunk                         ? "chat.completion.chunk"
                                                       : "chat.completion";
  Json answer = {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  answer["choices"] = std::move(choices);
  if (usage) answer["usage"] = usage->ToJson();
  return answer;
}

std::string ServerSentEvent(const Json& data) { return fmt::format("data: {}\n\n", DumpJson(data)); }

}  // namespace millrace::serve
