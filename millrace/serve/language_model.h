// The server's interface of a model: the logits of the next token of several sequences at a time, and vectors of whole
// texts. engine/ implements it, and a scripted model in tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The pool of blocks that a model keeps the keys and values of sequences in.
struct CacheSize {
  int blocks = 0, block_tokens = 0;
  std::int64_t tokens() const { return std::int64_t{blocks} * block_tokens; }
};

/// Weights that change what a model computes for some sequences (LoRA). The model that it was loaded for knows the
/// type. Immutable; any thread.
class Adapter {
 public:
  /// `add_bos`: whether texts that it was trained on begin with the beginning-of-text token; nothing: as the model's.
  explicit Adapter(std::optional<bool> add_bos = std::nullopt) : add_bos_(add_bos) {}
  virtual ~Adapter() = default;
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  /// Returns a number from 1 that no other adapter of this process has or had.
  std::uint64_t id() const { return id_; }
  std::optional<bool> add_bos() const { return add_bos_; }

 private:
  static inline std::atomic<std::uint64_t> last_id_{0};
  const std::uint64_t id_ = ++last_id_;
  const std::optional<bool> add_bos_;
};

/// Tokens that continue a sequence: a part of a prompt, or one new token. Borrowed by the call.
struct StepPart {
  std::span<const TokenId> tokens;  ///< at least one
  int past = 0;                     ///< tokens of the sequence that its blocks have
  /// The blocks of the sequence, in order: token p is in block p / block_tokens of them. They have room for these
  /// tokens. Blocks of tokens before `past` may be those of other sequences, too, that begin alike.
  std::span<const std::int32_t> blocks;
  int logits = 1;                    ///< the number of last tokens that get the logits of what follows them
  const Adapter* adapter = nullptr;  ///< of this model; of all parts of a sequence. Null: the model's own weights
};

/// A model. One thread at a time, the scheduler's, uses it.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual int vocab_size() const = 0;
  /// Returns the maximum number of tokens in a sequence, prompt included.
  virtual int context_length() const = 0;
  virtual CacheSize cache() const = 0;
  /// Stores the parts' tokens in their blocks. Returns the logits of the tokens that get some, vocab_size() numbers
  /// each, in their order; valid until the next call. Computes on the caller's thread. After an error, the parts count
  /// as not stored, and may be tried again.
  /// REQUIRES: there are parts; no two write to the same block.
  virtual Result<std::span<const float>> Step(std::span<const StepPart> parts) = 0;
  /// Returns a vector for each of `texts`. All have the same number of elements. Computes on the caller's thread and
  /// leaves the cache alone. Errors: kUnsupported if the model makes no vectors.
  /// REQUIRES: each text has a token, and at most context_length() of them.
  virtual Result<std::vector<std::vector<float>>> Embed(std::span<const std::span<const TokenId>> /*texts*/) {
    return Fail(Code::kUnsupported, "this model makes no embeddings");
  }
};

}  // namespace millrace::serve
