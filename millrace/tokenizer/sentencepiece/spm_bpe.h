// SentencePiece's BPE: exactly the library's ids.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/bpe/joints.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tables/merge_table.h"
#include "millrace/tokenizer/vocabulary/pieces.h"
#include "millrace/tokenizer/vocabulary/scratch.h"

namespace millrace::tokenizer {

/// What a vocabulary says of characters that it does not have.
struct SpmFallback {
  TokenId unk = 0;
  bool to_bytes = false;
  std::array<TokenId, 256> bytes{};  ///< when to_bytes
};

/// Merges characters by the scores of the pieces that they make. Immutable once made.
class SpmBpe {
 public:
  struct Options {
    bool space_is_mark = true;  ///< a space in the text and U+2581 in the pieces are the same character
    SpmFallback fallback;
  };
  /// `model` has no unused pieces and no broken ones; it need not live on.
  SpmBpe(const SentencePieceModel& model, const Options& options);

  /// `text` is normalized, or may be anything when normalizing is trivial. `prefix`: a space is to be put in front.
  void Encode(std::string_view text, bool prefix, Scratch& scratch, IdWriter& ids) const;

 private:
  void AddCharacters(const SentencePieceModel& model);
  void AddMerges(const SentencePieceModel& model);
  bool Occurs(const SentencePieceModel::Piece& piece) const;
  void AddJoints(std::string_view piece);
  Symbol SymbolOf(char32_t code) const {
    Symbol symbol = characters_[code];
    return symbol == kNoToken ? -1 - static_cast<Symbol>(code) : symbol;
  }
  void EncodeStretch(std::string_view text, std::size_t first, Scratch& scratch, IdWriter& ids) const;
  void EncodeUnseen(std::string_view word, Scratch& scratch, IdWriter& ids) const;
  void Emit(Symbol symbol, IdWriter& ids) const;

  Options options_;
  CodePointMap<Symbol> characters_;  ///< kNoToken: in no piece
  std::vector<TokenId> ids_;         ///< what each symbol is at last; kNoToken: falls back
  std::vector<char32_t> lone_;       ///< the code points of symbols ids_.size() and up
  ByteTrie frozen_;                  ///< user-defined pieces: found before anything merges
  MergeTable merges_;
  Joints joints_;
};

}  // namespace millrace::tokenizer
