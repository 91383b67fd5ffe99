// Makes rows for BERT of encoded documents: pairs of texts with masks for pre-training, or texts with a class.
// data/README.md defines the samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/data/reading/bert_tokens.h"

namespace millrace::data {

/// Returns the numbers of tokens that stay of texts with `a` and `b` tokens, if both together may have `room`. Tokens
/// are removed from the end of the longer text, one at a time, as the `tokenizers` library truncates pairs ("longest
/// first").
std::pair<std::size_t, std::size_t> ShortenPair(std::size_t a, std::size_t b, std::size_t room);

/// Writes [CLS] a [SEP] and, unless `b` is empty, b [SEP] into `row`; or only a and b, if `tokens` lack the others. The
/// rest is padding, a document of its own. Every label becomes kIgnoreLabel. REQUIRES: the texts and their special
/// tokens fit.
void WriteBertRow(std::span<const TokenId> a, std::span<const TokenId> b, const BertTokens& tokens, SequenceRow& row);

/// Immutable; any thread may call any method. Every method is a function of its arguments alone, and part of the order
/// of every run: the results never change.
class BertSampler {
 public:
  /// Errors: kInvalidArgument if the tokenizer lacks the special tokens, or the options contradict each other.
  static Result<BertSampler> Make(const DatasetOptions& options, const tokenizer::Tokenizer& tokenizer);

  /// Returns the most tokens of text in a row.
  std::size_t text_tokens() const { return text_tokens_; }
  const BertTokens& tokens() const { return tokens_; }
  int vocab_size() const { return vocab_size_; }

  /// Returns the random numbers of one sample. They depend on nothing else.
  static Random DrawOf(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index);

  /// Writes a text or a pair and its class. Shortens them to fit (ShortenPair).
  void WriteClass(const EncodedDocument& document, SequenceRow& row) const;

  /// A pair of texts under construction. The spans are parts of documents.
  struct TextPair {
    std::span<const TokenId> a, b;
    std::size_t wanted = 0;                 ///< not 0: b is to be that many tokens of another document
    std::int32_t row_label = kIgnoreLabel;  ///< 0: b follows a; 1: b is random
  };
  /// Cuts a piece of a document into a pair, or chooses the first text of a random pair.
  /// REQUIRES: `piece` has 1 to text_tokens() tokens.
  TextPair Cut(std::span<const TokenId> piece, Random& draw) const;
  /// Completes a random pair by a part of `other`, the text of another document. REQUIRES: `other` is not empty.
  void TakeRandom(std::span<const TokenId> other, TextPair& pair, Random& draw) const;
  /// Turns a random pair, for which there is no other document, into its first text alone.
  static void GiveUp(TextPair& pair);

  /// Writes the pair, and hides some of its tokens. The labels are the hidden tokens.
  void WriteMasked(const TextPair& pair, Random& draw, SequenceRow& row) const;

 private:
  BertSampler() = default;
  /// Returns a place to cut: the end of a sentence if there is one, else the beginning of a word, else any place.
  std::size_t CutPoint(std::span<const TokenId> piece, Random& draw) const;
  /// Returns where the sentence of token `at` begins, or its word if that is more than a row away.
  std::size_t BeginOfSentence(std::span<const TokenId> text, std::size_t at) const;
  void Mask(Random& draw, SequenceRow& row) const;
  /// Returns the first positions of the words of a row, and `end` behind them. Pieces are words without whole_word.
  std::vector<std::uint32_t> WordsOf(const SequenceRow& row) const;

  enum PieceTraits : std::uint8_t { kContinuesWord = 1, kEndsSentence = 2 };
  bool Has(TokenId id, PieceTraits trait) const { return (traits_[static_cast<std::size_t>(id)] & trait) != 0; }

  BertTokens tokens_;
  MlmOptions mlm_;
  std::size_t text_tokens_ = 0, max_predictions_ = 0;
  int vocab_size_ = 0;
  std::vector<std::uint8_t> traits_;  ///< by id; empty without masks
};

}  // namespace millrace::data
