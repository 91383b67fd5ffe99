// From generated tokens to text that may be sent: whole characters, and nothing of a stop string.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// Decodes token by token. A tokenizer decodes sequences, not tokens (it drops a leading space, it joins bytes to
/// characters): so a short window is decoded with and without the new token, and the difference is the new text. Text
/// that ends within a character waits for the tokens that complete it, for eight of them at most. One owner, no
/// locking.
class Detokenizer {
 public:
  /// `prompt`: what stands before; its end decides about leading spaces. The tokenizer must outlive it.
  Detokenizer(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> prompt);
  Result<std::string> Add(TokenId token);
  /// What still waits; bytes that are no character become U+FFFD.
  Result<std::string> Finish();

 private:
  Result<std::string> Take(bool all);

  const tokenizer::Tokenizer& tokenizer_;
  std::vector<TokenId> window_;
  std::size_t told_ = 0;  ///< tokens of the window whose text is out
};

/// Finds the first of some strings in text that comes in pieces. Holds back what may be the beginning of one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// The text that may go out now: up to a stop string, if one is complete.
  std::string Add(std::string_view text);
  /// What was held back, once nothing follows.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::size_t HeldBack() const;

  const std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

/// Every byte that is not part of a UTF-8 character becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);
/// The length of an unfinished character at the end of `text`, 0 if there is none.
std::size_t UnfinishedTail(std::string_view text);

}  // namespace millrace::serve
