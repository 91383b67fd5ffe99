// The BPE encoder of SentencePiece models. It gives exactly the ids of the SentencePiece library.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/bpe/adjacent_characters.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tables/merge_table.h"
#include "millrace/tokenizer/vocabulary/encode_workspace.h"

namespace millrace::tokenizer {

/// The tokens of a character that is not in the vocabulary: the unknown token, or one token for each byte.
struct SpmFallback {
  TokenId unk = 0;
  bool to_bytes = false;             ///< true: the tokens of the character's UTF-8 bytes; false: `unk`
  std::array<TokenId, 256> bytes{};  ///< the token of each byte; set if to_bytes
};

/// Splits a text into characters, and merges neighbours as long as a piece of the model allows it, the best score
/// first. Immutable; any thread.
class SpmBpe {
 public:
  struct Options {
    bool space_is_mark = true;  ///< a space in the text is the character U+2581 of the pieces
    SpmFallback fallback;
  };
  /// `model` need not outlive the call. REQUIRES: the model has no unused and no broken pieces.
  SpmBpe(const SentencePieceModel& model, const Options& options);

  /// Appends the ids of `text`. If `prefix`, the ids are those of a space and `text`.
  /// REQUIRES: `text` is normalized, unless SpmNormalizer::trivial(). With `prefix`, the model has no user-defined
  /// pieces.
  void Encode(std::string_view text, bool prefix, EncodeWorkspace& workspace, IdWriter& ids) const;

 private:
  void AddCharacters(const SentencePieceModel& model);
  void AddMerges(const SentencePieceModel& model);
  bool Occurs(const SentencePieceModel::ScoredPiece& piece) const;
  void AddAdjacent(std::string_view piece);
  Symbol SymbolOf(char32_t code) const {
    Symbol symbol = characters_[code];
    return symbol == kNoToken ? -1 - static_cast<Symbol>(code) : symbol;
  }
  /// Encodes a part of the text that has no user-defined piece. `first` is the index of the whole text's first id.
  void EncodeStretch(std::string_view text, std::size_t first, EncodeWorkspace& workspace, IdWriter& ids) const;
  /// Encodes a word that the cache of words does not have.
  void EncodeUnseen(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const;
  /// Appends the token of a symbol, or the fallback.
  void Emit(Symbol symbol, IdWriter& ids) const;

  Options options_;
  CodePointMap<Symbol> characters_;  ///< kNoToken: the character is in no piece
  std::vector<TokenId> ids_;         ///< the token of each symbol that is a piece; kNoToken: the fallback
  std::vector<char32_t> lone_;       ///< the code points of symbols from ids_.size() on, which occur only inside pieces
  ByteTrie frozen_;                  ///< user-defined pieces, which are found before merging
  MergeTable merges_;
  AdjacentCharacters adjacent_;
};

}  // namespace millrace::tokenizer
