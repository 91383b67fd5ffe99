// The models of tokenizer.json files: what turns one word into ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/vocabulary/scratch.h"

namespace millrace::tokenizer::hf {

/// Turns words into ids. A word's ids depend on nothing but its bytes. Immutable; any thread.
class WordModel {
 public:
  virtual ~WordModel() = default;
  /// `word` is not empty and valid UTF-8.
  virtual void Encode(std::string_view word, Scratch& scratch, IdWriter& ids) const = 0;
};

/// The tokens that a model may find in words. Special tokens are left out: no text of a document becomes one.
class ModelVocabulary {
 public:
  explicit ModelVocabulary(const File& file);
  ModelVocabulary(const ModelVocabulary&) = delete;
  ModelVocabulary& operator=(const ModelVocabulary&) = delete;

  TokenId Find(std::string_view token) const { return index_.Find(token); }
  const Pieces& pieces() const { return pieces_; }  ///< empty for special tokens

 private:
  Pieces pieces_;
  PieceIndex index_;
};

/// Reads `file`'s model: BPE, WordPiece, WordLevel or Unigram. Errors: kUnsupported, naming it, for what it asks for
/// beyond that; kInvalidArgument for a broken one.
Result<std::unique_ptr<const WordModel>> ReadWordModel(const File& file);

/// One of those, which is longer than the others.
Result<std::unique_ptr<const WordModel>> ReadUnigramModel(const File& file);

}  // namespace millrace::tokenizer::hf
