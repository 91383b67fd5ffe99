// The forms of answers, as OpenAI's clients read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/json.h"

namespace millrace::serve {

enum class AnswerForm : std::uint8_t {
  kCompletion,  ///< of /v1/completions
  kChat,        ///< of /v1/chat/completions
  kInputs,      ///< [{"generated_text": …}]; whole answers only
  kMessages,    ///< of /v1/messages: not here, but in messages.h
  kResponses,   ///< of /v1/responses: in responses.h
};

/// Counts of tokens, as in "usage".
struct Usage {
  std::int64_t prompt = 0, completion = 0;
  std::int64_t cached = 0;  ///< of `prompt`, that were not computed
  Json ToJson() const;
};

/// The members that all chunks of one answer share.
struct AnswerHead {
  std::string id;            ///< "cmpl-…"
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;
};

/// The "logprobs" of one token. Logarithms are natural.
struct TokenLogprobs {
  std::string text;                    ///< may have part of a character
  std::optional<double> logprob = {};  ///< nothing: of the first token of a prompt
  std::vector<std::pair<std::string, double>> likeliest = {};
};

/// A call of a tool, or a part of one: the id and the name come first, with no arguments, and then parts of the
/// arguments.
struct ToolCallPart {
  std::size_t index = 0;  ///< of the call in its text
  std::string id = {}, name = {};
  std::string arguments = {};  ///< the text of a JSON object, or a part of it
};

/// A text of an answer, or a piece of one.
struct AnswerPiece {
  std::size_t index = 0;  ///< of the text
  std::string_view text;
  const std::vector<TokenLogprobs>* logprobs = nullptr;  ///< null: not wanted
  std::span<const ToolCallPart> calls = {};              ///< of a whole answer, each is in one part
  std::size_t text_offset = 0;                           ///< characters of the text in front of the piece
  std::string_view finish;  ///< "stop", "length", "tool_calls", or "" while the text continues
};

/// Returns the number of code points in UTF-8. A part of one that does not begin it counts for nothing.
std::size_t CountCodePoints(std::string_view text);

/// Returns one of "choices": of a whole answer, or of a chunk of a stream.
Json Choice(AnswerForm form, bool chunk, const AnswerPiece& piece);
/// Returns the choice that begins a streamed text, if the form has one: it has the role.
std::optional<Json> FirstChoice(AnswerForm form, std::size_t index);
Json Answer(AnswerForm form, bool chunk, const AnswerHead& head, Json choices, const std::optional<Usage>& usage);
/// "data: {…}\n\n"
std::string ServerSentEvent(const Json& data);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

}  // namespace millrace::serve
