// Text to token ids and back, behind one interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

/// Immutable once made; any thread may call any method.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`. Special tokens are never added and never recognised in the text: a document that
  /// contains
  /// "<s>" is text. Invalid UTF-8 is encoded as the reference implementation does.
  virtual Status Encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  /// Appends the first `count` of those ids, or all if there are fewer; may spare the work for the rest.
  virtual Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const {
    std::size_t before = ids.size();
    MR_TRY(Encode(text, ids));
    if (ids.size() - before > count) ids.resize(before + count);
    return {};
  }
  /// The text of `ids`; special tokens yield nothing. Fails with kInvalidArgument on an id outside the vocabulary.
  virtual Result<std::string> Decode(std::span<const TokenId> ids) const = 0;
  /// The piece as stored in the model ("▁the", "<0x0A>").
  virtual Result<std::string> Piece(TokenId id) const = 0;

  virtual int vocab_size() const = 0;
  virtual TokenId bos() const = 0;  ///< kNoToken when the model has none; likewise the next two
  virtual TokenId eos() const = 0;
  virtual TokenId unk() const = 0;
  virtual std::string_view kind() const = 0;  ///< "sentencepiece-bpe"
  /// crc32c of the model's bytes as 8 hex digits: part of the identity of everything tokenized with it.
  virtual const std::string& fingerprint() const = 0;
};

/// Recognises the format by its content. `name` is for messages.
Result<std::shared_ptr<const Tokenizer>> Load(ByteSpan model, std::string_view name);

struct TrainOptions {
  int vocab_size = 4096;
  int threads = 2;
  double character_coverage = 0.9995;
  std::uint64_t max_input_bytes = 64 * kMiB;  ///< beyond: sentences are sampled
  std::uint64_t seed = 1;
};
/// Trains a SentencePiece BPE model with byte fallback, identity normalisation and the ids 0 <unk>, 1 <s>, 2 </s>, as
/// Llama's. `next` yields the next document, or false at the end. Returns the model's bytes, the same for the same
/// input.
Result<std::string> TrainSentencePieceBpe(const std::function<Result<bool>(std::string& document)>& next,
                                          TrainOptions options);

}  // namespace millrace::tokenizer
