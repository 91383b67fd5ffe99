// Finds the bytes of a text that each of its tokens stands for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/special_texts.h"

namespace millrace::data {

/// The bytes of a text that a token stands for. Both members never decrease from one token to the next.
struct TokenExtent {
  std::size_t begin = 0, end = 0;
  /// The tokenizer changed the text here: the token stands for some of these bytes, as its neighbours with the same
  /// extent do.
  bool shared = false;
  bool operator==(const TokenExtent&) const = default;
};

/// Finds the extents of tokens by their pieces. Keeps its buffers between calls. One thread. The arguments of the
/// constructor must outlive it.
class TokenExtentFinder {
 public:
  TokenExtentFinder(const tokenizer::Tokenizer& tokenizer, const tokenizer::SpecialTexts& specials)
      : tokenizer_(tokenizer), specials_(specials), bytes_alone_(tokenizer.kind() == "byte-bpe") {}

  /// Appends the extents of `ids`, which are the tokens of EncodeWithSpecials(text). Adds `base` to all places. White
  /// space that a special token takes belongs to it. Errors: those of Tokenizer::Piece.
  Status Append(std::string_view text, std::span<const tokenizer::TokenId> ids, std::size_t base,
                std::vector<TokenExtent>& extents);

 private:
  /// Returns the text that a token adds, as far as its piece tells.
  Result<std::string> SurfaceOf(tokenizer::TokenId id) const;
  /// Returns whether the text spells the token. Others with such a piece stand for unknown text or for a byte.
  Result<bool> IsSpecial(tokenizer::TokenId id) const;
  /// Appends the extents of the tokens in surfaces_, whose text is text[begin, end).
  void AppendRun(std::string_view text, std::size_t begin, std::size_t end, std::vector<TokenExtent>& extents) const;

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::SpecialTexts& specials_;
  const bool bytes_alone_;  ///< pieces are bytes of the text
  std::vector<std::string> surfaces_;
};

}  // namespace millrace::data
