// The models of tokenizer.json files, which turn one word into ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/vocabulary/encode_workspace.h"
#include "millrace/tokenizer/vocabulary/token_index.h"

namespace millrace::tokenizer::hf {

/// Turns a word into ids. The ids of a word depend only on its bytes. Immutable; any thread.
class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Appends the ids of `word`. REQUIRES: `word` is valid UTF-8 and not empty.
  virtual void Encode(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const = 0;
};

/// The tokens that a model may find in words. Without special tokens, so that no text of a document becomes one.
/// Immutable; any thread.
class ModelVocabulary {
 public:
  explicit ModelVocabulary(const TokenizerFile& file);
  ModelVocabulary(const ModelVocabulary&) = delete;
  ModelVocabulary& operator=(const ModelVocabulary&) = delete;

  TokenId Find(std::string_view token) const { return index_.Find(token); }
  const TokenStrings& strings() const { return strings_; }  ///< empty for special tokens

 private:
  TokenStrings strings_;
  TokenIndex index_;
};

/// Reads the model of `file`: BPE, WordPiece, WordLevel or Unigram. Errors: kUnsupported, with its name, for an option
/// that is not supported; kInvalidArgument for a broken model.
Result<std::unique_ptr<const WordModel>> ReadWordModel(const TokenizerFile& file);

/// Reads a Unigram model. Errors: those of ReadWordModel().
Result<std::unique_ptr<const WordModel>> ReadUnigramModel(const TokenizerFile& file);

}  // namespace millrace::tokenizer::hf
