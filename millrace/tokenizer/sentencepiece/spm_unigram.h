// SentencePiece's unigram model, with exactly the library's ids.
#pragma once

#include <string_view>
#include <vector>

#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/sentencepiece/spm_bpe.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/vocabulary/encode_workspace.h"

namespace millrace::tokenizer {

/// Finds the segmentation with the best sum of scores (Viterbi). Rounds sums where the library rounds them. A text
/// cannot be cut, because the rounding depends on all text before. The reference is SentencePiece 0.2. Version 0.1.97
/// rounded sums later, so its ids differ if two segmentations are equally good. Immutable; any thread.
class SpmUnigram {
 public:
  SpmUnigram(const SentencePieceModel& model, const SpmFallback& fallback);

  /// Appends the ids of `text`. REQUIRES: `text` is normalized.
  void Encode(std::string_view text, EncodeWorkspace& workspace, IdWriter& ids) const;

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
