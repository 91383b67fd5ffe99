// Turns generated tokens into text that can be sent: whole characters, without stop strings.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// Decodes token by token. A tokenizer decodes sequences, not tokens: it drops a leading space and joins bytes to
/// characters. So this class decodes a short window with and without the new token; the difference is the new text.
/// Text that ends within a character waits for more tokens, for eight at most. One owner, no locking.
class Detokenizer {
 public:
  /// `prompt`: the tokens before; its end decides about leading spaces.
  /// REQUIRES: `tokenizer` outlives this object.
  Detokenizer(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> prompt);
  /// Returns the text that `token` completes; may be empty.
  Result<std::string> Add(TokenId token);
  /// Returns the text that still waits. Bytes that are no character become U+FFFD.
  Result<std::string> Finish();

 private:
  Result<std::string> Take(bool all);

  const tokenizer::Tokenizer& tokenizer_;
  std::vector<TokenId> window_;
  std::size_t emitted_ = 0;  ///< the number of tokens in the window whose text was returned
};

/// Finds the first stop string in text that arrives in pieces. Holds back text that may be the beginning of one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Returns the text that can be sent now: up to a stop string, if one is complete.
  std::string Add(std::string_view text);
  /// Returns the text that was held back. Call it at the end of the text.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::size_t HeldBack() const;

  const std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

/// Replaces every byte that is not part of a UTF-8 character by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);
/// Returns the length of an incomplete character at the end of `text`, or 0.
std::size_t UnfinishedTail(std::string_view text);

}  // namespace millrace::serve
