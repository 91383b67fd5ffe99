// SentencePiece's BPE, with exactly the library's ids.
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

/// The tokens for characters that the vocabulary does not have.
struct SpmFallback {
  TokenId unk = 0;
  bool to_bytes = false;
  std::array<TokenId, 256> bytes{};  ///< set if to_bytes
};

/// Merges characters into the piece with the best score. Immutable; any thread.
class SpmBpe {
 public:
  struct Options {
    bool space_is_mark = true;  ///< a space in the text and U+2581 in the pieces are the same character
    SpmFallback fallback;
  };
  /// `model` need not outlive the call. REQUIRES: it has no unused and no broken pieces.
  SpmBpe(const SentencePieceModel& model, const Options& options);

  /// Appends the ids of `text`, with a space in front of it if `prefix`.
  /// REQUIRES: `text` is normalized, unless SpmNormalizer::trivial().
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
  void EncodeStretch(std::string_view text, std::size_t first, EncodeWorkspace& workspace, IdWriter& ids) const;
  void EncodeUnseen(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const;
  void Emit(Symbol symbol, IdWriter& ids) const;

  Options options_;
  CodePointMap<Symbol> characters_;  ///< kNoToken: the character is in no piece
  std::vector<TokenId> ids_;         ///< the token of each symbol that is left after merging; kNoToken: the fallback
  std::vector<char32_t> lone_;       ///< the code points of symbols ids_.size() and up
  ByteTrie frozen_;                  ///< user-defined pieces, which are found before merging
  MergeTable merges_;
  AdjacentCharacters adjacent_;
};

}  // namespace millrace::tokenizer
