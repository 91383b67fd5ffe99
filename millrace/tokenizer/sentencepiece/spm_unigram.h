// SentencePiece's unigram model: exactly the library's ids.
#pragma once

#include <string_view>
#include <vector>

#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/sentencepiece/spm_bpe.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/vocabulary/scratch.h"

namespace millrace::tokenizer {

/// The segmentation of the best sum of scores (Viterbi). Sums are rounded where the library rounds them, and run over
/// the whole text: it cannot be cut, because the rounding depends on how much came before. The reference is
/// SentencePiece 0.2; 0.1.97 rounded sums later, and differs where two ways are equally good. Immutable once made.
class SpmUnigram {
 public:
  SpmUnigram(const SentencePieceModel& model, const SpmFallback& fallback);

  /// `text` is normalized.
  void Encode(std::string_view text, Scratch& scratch, IdWriter& ids) const;

 private:
  void FindBestPath(std::string_view text, std::vector<PathNode>& path) const;
  void EmitUnknown(std::string_view character, bool after_unknown, IdWriter& ids) const;

  SpmFallback fallback_;
  bool space_is_mark_;
  ByteTrie trie_;
  std::vector<float> scores_;
  float unknown_score_ = 0;
};

}  // namespace millrace::tokenizer
