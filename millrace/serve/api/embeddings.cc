// POST /v1/embeddings.
#include <algorithm>
#include <cmath>

#include "millrace/serve/api/api.h"
#include "millrace/serve/protocol/embedding.h"

namespace millrace::serve {

/// As Tokens(), but with the tokens that the tokenizer's post-processor puts around a text.
Parsed<std::vector<TokenId>> Api::EmbeddingTokens(const Prompt& input) const {
  if (std::holds_alternative<std::vector<TokenId>>(input))
    return KnownTokens(std::get<std::vector<TokenId>>(input), "input");
  std::vector<TokenId> ids;
  if (options_.embeds_bos && tokenizer_.bos() != tokenizer::kNoToken) ids.push_back(tokenizer_.bos());
  if (auto encoded = tokenizer_.Encode(std::get<std::string>(input), ids); !encoded) {
    return std::unexpected(ToApiError(encoded.error()));
  }
  if (options_.embeds_eos && tokenizer_.eos() != tokenizer::kNoToken) ids.push_back(tokenizer_.eos());
  if (ids.empty()) return std::unexpected(ApiError{.message = "an input has no tokens", .param = "input"});
  return ids;
}

void Api::Embed(http::ServerRequest& request, http::ServerResponse& response, const Json& body) {
  const TimePoint arrived = clock_.Now();
  const auto parsed = ParseEmbedding(body, options_.limits);
  if (!parsed) return SendError(response, parsed.error());
  if (!parsed->model.empty() && parsed->model != options_.model_name) {
    return SendError(response, NoSuchModel(parsed->model));
  }
  EmbeddingTask task{.texts = {},
                     .user = UserOf(request),
                     .start_by = After(arrived, options_.max_wait),
                     .end_by = After(arrived, options_.max_time)};
  Usage usage;
  for (const Prompt& input : parsed->inputs) {
    auto ids = EmbeddingTokens(input);
    if (!ids) return SendError(response, ids.error());
    if (ids->size() > static_cast<std::size_t>(options_.context_length)) {
      return SendError(response, {.message = fmt::format("an input has {} tokens, but the model's context is {} tokens",
                                                         ids->size(), options_.context_length),
                                  .param = "input",
                                  .code = "context_length_exceeded"});
    }
    usage.prompt += static_cast<std::int64_t>(ids->size());
    task.texts.push_back(*std::move(ids));
  }
  auto vectors = scheduler_.Get()->Embed(std::move(task), request.stop());
  if (!vectors && request.stop().stop_requested()) {
    metrics_.cancelled.Add();
    return;
  }
  if (!vectors) return SendError(response, ToApiError(vectors.error()));
  const std::size_t elements = vectors->empty() ? 0 : vectors->front().size();
  if (auto refused = CheckAnswer(*parsed, elements)) return SendError(response, *refused);
  for (std::vector<float>& vector : *vectors) {
    const int size = static_cast<int>(vector.size());
    if (parsed->dimensions > size) {
      return SendError(response, {.message = fmt::format("dimensions is {}, but the model's vectors have {} elements",
                                                         parsed->dimensions, size),
                                  .param = "dimensions"});
    }
    if (!std::ranges::all_of(vector, [](float value) { return std::isfinite(value); })) {
      return SendError(response, {.status = 500,
                                  .message = "the model's vectors are not numbers: are its weights sound?",
                                  .type = "server_error",
                                  .code = "not_numbers"});
    }
    if (parsed->dimensions > 0) Shorten(vector, parsed->dimensions);
  }
  metrics_.prompt_tokens.Add(static_cast<std::uint64_t>(usage.prompt));
  metrics_.request_s.Observe(std::chrono::duration<double>(clock_.Now() - arrived).count());
  SendJson(response, 200, EmbeddingAnswer(*parsed, *vectors, options_.model_name, usage));
}

}  // namespace millrace::serve
