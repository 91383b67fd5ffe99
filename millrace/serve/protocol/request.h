// The requests of OpenAI's, Hugging Face's and SageMaker's clients. Works on JSON only, without a model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/api_error.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

struct RequestLimits {
  int max_tokens = 4096;
  int max_prompts = 2048;  ///< of a request; the scheduler takes fewer texts at a time
  int max_texts = 16;      ///< of one prompt
  int max_inputs = 2048;   ///< of a request for embeddings, as OpenAI's
  int max_stops = 16;
  std::size_t max_stop_bytes = 256;
  int max_logprobs = 20;
  std::size_t max_biases = 1024;
};

/// The form that a text must have.
struct TextForm {
  enum class Kind : std::uint8_t { kAny, kJsonObject, kJsonSchema, kRegex, kChoice };
  Kind kind = Kind::kAny;
  Json schema = nullptr;
  std::string regex = {};
  std::vector<std::string> choices = {};
};

/// The options that requests of all forms have.
struct RequestOptions {
  std::string model;  ///< empty: not given
  std::optional<int> max_tokens;
  int texts = 1;             ///< of each prompt ("n")
  int best_of = 0;           ///< the number of texts to make; the likeliest are the answer; 0: `texts`
  SamplingOptions sampling;  ///< its seed counts only if given
  bool seed_given = false;
  std::vector<std::string> stops;
  std::vector<TokenId> stop_tokens;  ///< that end a text, beside the model's own
  bool ignores_ends = false;         ///< the model's own ends are tokens like others
  TextForm form;
  bool stream = false;
  bool include_usage = false;  ///< a last chunk with the counts

  int made_texts() const { return std::max(texts, best_of); }  ///< of each prompt
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  RequestOptions options;
  std::vector<Prompt> prompts;   ///< at least one
  bool echo = false;             ///< repeats the prompts, with their log-probabilities where those are wanted
  bool splits_specials = false;  ///< what a prompt spells like a special token stays text
  bool adds_bos = true;          ///< where the model's prompts begin with it
};

/// The choice whether an answer may, or must, call tools.
struct ToolChoice {
  enum class Kind : std::uint8_t { kNone, kAuto, kRequired, kNamed };
  Kind kind = Kind::kNone;
  std::string name = {};                ///< of the function, with kNamed
  std::vector<std::string> names = {};  ///< of the functions of all tools
  bool parallel = true;                 ///< an answer may have several calls
  bool is_forced() const { return kind == Kind::kRequired || kind == Kind::kNamed; }
};

/// A conversation whose next message is wanted.
struct ChatRequest {
  RequestOptions options;
  /// Objects with a "role" and, if they have one, a "content" that is a string. Arguments of tool calls are objects.
  Json messages = Json::array();
  Json tools = nullptr;  ///< for the template; null: none
  ToolChoice tool_choice = {};
  Json variables = Json::object();  ///< more variables of the template ("chat_template_kwargs")
  bool add_generation_prompt = true;
  bool continues_last = false;   ///< the last message is the beginning of the answer
  Json echoed = Json::object();  ///< members of the request that the answer repeats (/v1/responses)
};

/// Parse the bodies of /v1/completions and /v1/chat/completions. Unknown members are errors. A member of OpenAI's
/// interface that this server does not support is an error unless its value changes nothing.
Parsed<CompletionRequest> ParseCompletion(const Json& body, const RequestLimits& limits);
Parsed<ChatRequest> ParseChat(const Json& body, const RequestLimits& limits);

/// {"inputs": text or list, "parameters": {…}}, as Hugging Face's containers take it. The answer has the form
/// [{"generated_text": …}].
struct InputsRequest {
  CompletionRequest request;
};
using AnyRequest = std::variant<CompletionRequest, ChatRequest, InputsRequest>;
/// Parses the body of /invocations, which has one of three forms.
Parsed<AnyRequest> ParseInvocation(const Json& body, const RequestLimits& limits);

}  // namespace millrace::serve
