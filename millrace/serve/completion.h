// The completions protocol: parses requests and makes answers. Works on JSON only, without a model.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

/// An error as OpenAI's clients expect it: {"error": {message, type, param, code}} with an HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  ///< empty: null
  std::string code;   ///< empty: null
  Json ToJson() const;
};
ApiError ToApiError(const Error& error);

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  std::string model;            ///< empty: not given
  std::vector<Prompt> prompts;  ///< at least one
  std::optional<int> max_tokens;
  SamplingOptions sampling;  ///< its seed counts only if given
  bool seed_given = false;
  std::vector<std::string> stops;
  bool echo = false;
  bool stream = false;
  bool include_usage = false;  ///< a last chunk with the counts
};

struct RequestLimits {
  int max_tokens = 4096;
  int max_prompts = 16;
  int max_stops = 16;
  std::size_t max_stop_bytes = 256;
};

template <class T>
using Parsed = std::expected<T, ApiError>;

/// Parses the body of /v1/completions. Unknown members are errors. A member of OpenAI's interface that this server does
/// not support is an error unless its value changes nothing.
Parsed<CompletionRequest> ParseCompletion(const Json& body, const RequestLimits& limits);

/// The body of /invocations: one for /v1/completions, or {"inputs": text or list, "parameters": {…}} as Hugging Face's
/// containers take it.
struct Invocation {
  CompletionRequest request;
  bool inputs_form = false;  ///< answer [{"generated_text": …}]
};
Parsed<Invocation> ParseInvocation(const Json& body, const RequestLimits& limits);

/// Counts of tokens, as in "usage".
struct Usage {
  std::int64_t prompt = 0, completion = 0;
  Json ToJson() const;
};

/// The members that all chunks of one answer share.
struct AnswerHead {
  std::string id;            ///< "cmpl-…"
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;
};
/// `finish`: "stop", "length", or "" while the text continues.
Json Choice(std::size_t index, std::string_view text, std::string_view finish);
Json Answer(const AnswerHead& head, Json choices, const std::optional<Usage>& usage);
/// "data: {…}\n\n"
std::string ServerSentEvent(const Json& data);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

}  // namespace millrace::serve
