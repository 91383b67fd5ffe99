// The answer to one request for texts: an admitted job, and its texts as JSON or as server-sent events.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/http/server/server.h"
#include "millrace/serve/api/api_metrics.h"
#include "millrace/serve/api/text_maker.h"
#include "millrace/serve/calls/call_reader.h"
#include "millrace/serve/protocol/answer.h"
#include "millrace/serve/protocol/request.h"
#include "millrace/serve/scheduler.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// One request: its generations and the form of its answer.
struct CompletionJob {
  AnswerForm form = AnswerForm::kCompletion;
  AnswerHead head;
  RequestOptions options;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<TokenId> ends;
  std::vector<std::string> echoes;            ///< the text of each prompt, where it is to be repeated
  bool tells_prompt = false;                  ///< with the log-probabilities of its tokens
  Json echoed = Json::object();               ///< members of the request that the answer repeats
  Json messages = nullptr;                    ///< of a response that is kept; with the answer's once it was sent
  std::shared_ptr<Scheduler> scheduler = {};  ///< that makes the texts
  std::vector<Generation> generations;        ///< options.made_texts() for each prompt
  int user = 0;
  ToolSyntax tool_syntax = ToolSyntax::kUnknown;
  ToolChoice tool_choice;
  Usage usage;
  TimePoint arrived;
  bool first_token_seen = false;

  /// Returns what finds the calls of a text; nothing if there are none to find.
  std::optional<ToolCallParser> Calls() const {
    if (tool_choice.kind == ToolChoice::Kind::kNone) return std::nullopt;
    using enum TextForm::Kind;
    // With a JSON response_format, the text is the answer and never a call.
    const bool is_json = options.form.kind == kJsonObject || options.form.kind == kJsonSchema;
    if (!tool_choice.is_forced() && (tool_syntax == ToolSyntax::kUnknown || is_json)) return std::nullopt;
    return ToolCallParser(tool_syntax, tool_choice.names, tool_choice.is_forced());
  }
  std::string_view echo(std::size_t generation) const {
    return echoes.empty() ? std::string_view() : echoes[generation / static_cast<std::size_t>(options.made_texts())];
  }
};

/// Makes the texts of a job and answers its request. One owner, no locking. A call blocks until the last text has
/// ended, the client has gone or the server stops.
class CompletionAnswer {
 public:
  /// REQUIRES: all arguments outlive this object.
  CompletionAnswer(CompletionJob& job, const tokenizer::Tokenizer& tokenizer, ApiMetrics& metrics, Clock& clock);

  /// Answers with server-sent events, or with one JSON object, as the request asks.
  /// Errors: kCancelled if the client has gone; kUnavailable if the connection broke; those of the generations. An
  /// error after the first event was sent as an event, too.
  Status Send(http::ServerRequest& request, http::ServerResponse& response);

 private:
  /// A text while it is made.
  struct AnswerText {
    TextMaker maker;
    std::vector<TokenLogprobs> logprobs = {};  ///< of tokens whose text was not sent yet
    double logprob_sum = 0;
    int tokens = 0;
    bool has_ended = false;

    /// Returns the mean log-probability of a token.
    double Score() const { return tokens > 0 ? logprob_sum / tokens : 0; }
  };
  /// Takes pieces of the text of that number. `finish`: how it ended, as the protocol says; "" while it goes on.
  using Emit = std::function<Status(std::size_t index, const AnswerParts& parts, std::string_view finish)>;

  Status Stream(http::ServerRequest& request, http::ServerResponse& response);
  /// Answers with the events of MessageEvents or ResponseEvents.
  template <class Events>
  Status StreamEvents(Events events, http::ServerRequest& request, http::ServerResponse& response);
  Status Collect(http::ServerRequest& request, http::ServerResponse& response);
  /// Makes all texts beside each other. Calls `emit` with their pieces, and with the end of each.
  Status MakeTexts(std::stop_token stop, const Emit& emit);
  Status TakeToken(std::size_t index, const SampledToken& token, const Emit& emit);
  Status EndText(std::size_t index, const Emit& emit);
  /// Returns the numbers of the texts that the answer has: all, or the likeliest ones of each prompt.
  std::vector<std::size_t> ChooseTexts() const;
  TokenLogprobs Logprobs(const SampledToken& token) const;
  /// Returns those of a text's prompt, where they are wanted. The next call returns none.
  std::vector<TokenLogprobs> PromptLogprobs(std::size_t index);
  void CountCached();
  std::string TokenText(TokenId token) const;

  CompletionJob& job_;
  const tokenizer::Tokenizer& tokenizer_;
  ApiMetrics& metrics_;
  Clock& clock_;
  std::vector<AnswerText> texts_;
};

}  // namespace millrace::serve
