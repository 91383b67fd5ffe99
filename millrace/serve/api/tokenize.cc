// POST /tokenize, /detokenize and /v1/messages/count_tokens.
#include "millrace/serve/api/api.h"
#include "millrace/serve/protocol/body_reader.h"
#include "millrace/serve/protocol/messages.h"
#include "millrace/serve/protocol/prompts.h"

namespace millrace::serve {

Parsed<std::vector<TokenId>> Api::PromptOf(const Json& body, std::stop_token stop) const {
  if (JsonFind(body, "messages") != nullptr) {
    const auto chat = ParseChat(body, options_.limits);
    if (!chat) return std::unexpected(chat.error());
    const auto adapter = ChooseAdapter(chat->options.model, std::move(stop));
    if (!adapter) return std::unexpected(adapter.error());
    auto job = Describe(*chat, adapter->get());
    if (!job) return std::unexpected(std::move(job).error());
    return std::move(job->prompts.front());
  }
  CompletionRequest completion;
  BodyReader reader(body);
  reader.Text("model", completion.options.model);
  reader.Flag("add_special_tokens", completion.adds_bos);
  reader.Flag("split_special_tokens", completion.splits_specials);
  std::string prompt;
  if (JsonFind(body, "prompt") == nullptr) reader.Refuse("prompt", "prompt or messages is required");
  reader.Text("prompt", prompt);
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  const auto adapter = ChooseAdapter(completion.options.model, std::move(stop));
  if (!adapter) return std::unexpected(adapter.error());
  return Tokens(prompt, completion, adapter->get());
}

void Api::CountMessageTokens(http::ServerRequest& request, http::ServerResponse& response, const Json& body) {
  Json whole = body;
  if (whole.is_object()) whole["max_tokens"] = 1;  // of an answer, which is not made
  const auto chat = ParseMessages(whole, options_.limits);
  if (!chat) return SendError(response, chat.error(), AnswerForm::kMessages);
  const auto adapter = ChooseAdapter(chat->options.model, request.stop());
  if (!adapter) return SendError(response, adapter.error(), AnswerForm::kMessages);
  const auto job = Describe(*chat, adapter->get());
  if (!job) return SendError(response, job.error(), AnswerForm::kMessages);
  SendJson(response, 200, {{"input_tokens", job->prompts.front().size()}});
}

void Api::Tokenize(http::ServerRequest& request, http::ServerResponse& response, const Json& body) {
  const auto tokens = PromptOf(body, request.stop());
  if (!tokens) return SendError(response, tokens.error());
  SendJson(response, 200, {{"count", tokens->size()}, {"max_model_len", options_.context_length}, {"tokens", *tokens}});
}

void Api::Detokenize(http::ServerResponse& response, const Json& body) {
  BodyReader reader(body);
  std::vector<Prompt> prompts;
  ReadPrompts(reader, "tokens", 1, prompts);
  reader.Ignore("model");
  reader.RejectUnknown();
  const auto* ids = prompts.size() == 1 ? std::get_if<std::vector<TokenId>>(&prompts.front()) : nullptr;
  if (ids == nullptr) reader.Refuse("tokens", "tokens should be a list of token ids");
  if (!reader.good()) return SendError(response, reader.error());
  const auto known = KnownTokens(*ids, "tokens");
  if (!known) return SendError(response, known.error());
  const auto text = tokenizer_.Decode(*known);
  if (!text) return SendError(response, ToApiError(text.error()));
  SendJson(response, 200, {{"prompt", *text}});
}

}  // namespace millrace::serve
