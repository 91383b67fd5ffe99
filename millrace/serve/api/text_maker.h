// Turns the tokens of one text into the pieces of its answer.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/serve/calls/call_reader.h"
#include "millrace/serve/text_stream.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// Turns tokens into words and calls of tools. One owner, no locking.
class TextMaker {
 public:
  /// `prompt`: the tokens before the text. `calls`: finds the calls; nothing: all is words. Without `parallel`, the
  /// text stops behind its first call. REQUIRES: `tokenizer` outlives this object.
  TextMaker(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> prompt, std::vector<std::string> stops,
            std::optional<ToolCallParser> calls, bool parallel);

  /// Returns what `token` completes; may be empty.
  Result<AnswerParts> Add(TokenId token);
  /// Returns what was held back. Call it at the end of the text, also of a text that stopped.
  Result<AnswerParts> Finish();
  /// Returns whether the text needs no more tokens: behind a stop string, or its only call.
  bool stopped() const { return matcher_.stopped() || (!parallel_ && calls_ && calls_->has_call()); }
  /// Returns whether the text has a call.
  bool calls() const { return calls_ && calls_->calls() > 0; }

 private:
  AnswerParts Divide(std::string text);

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::optional<ToolCallParser> calls_;
  std::map<TokenId, std::string> marks_;  ///< of calls, by special tokens that have no text
  const bool parallel_;
};

}  // namespace millrace::serve
