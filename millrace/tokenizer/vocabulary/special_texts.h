// The texts of a tokenizer's special tokens, and how texts of others are kept from becoming such tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Stands within text that spells a special token, so that a template can work on the text. Valid UTF-8 does not have
/// this byte.
inline constexpr char kSpecialBreak = '\xff';

/// The special tokens of a tokenizer: those without a text of their own that are found where a text spells them.
/// Immutable; any thread.
class SpecialTexts {
 public:
  /// Looks at each token of the vocabulary. Does not keep `tokenizer`.
  explicit SpecialTexts(const Tokenizer& tokenizer);

  /// Inserts kSpecialBreak into each special token that `text` spells. A caller encodes the stretches between these
  /// bytes.
  void Break(std::string& text) const;
  /// Returns whether a token is special.
  bool Has(TokenId id) const;
  /// Returns the bytes of the special token that `text` ends with, as a template writes it; 0 if it ends with none.
  std::size_t EndOf(std::string_view text) const;

 private:
  std::vector<std::string> texts_;
  std::vector<TokenId> ids_;  ///< ascending
  ByteTrie trie_;             ///< its values are indices into texts_
};

}  // namespace millrace::tokenizer
