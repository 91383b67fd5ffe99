// What the server needs of a model: the scores of the next token.
#pragma once

#include <memory>
#include <span>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// One text under way, with the state (keys and values) of the tokens it has so far.
class Sequence {
 public:
  virtual ~Sequence() = default;
  /// Appends tokens, at least one, and gives the logits of what may follow the last: vocab_size() numbers, valid until
  /// the next call. Computes in the caller's thread.
  virtual Result<std::span<const float>> Append(std::span<const TokenId> tokens) = 0;
};

/// Used by one thread at a time, the scheduler's; so are its sequences, which it must outlive.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual int vocab_size() const = 0;
  /// Tokens that a sequence can hold at most, prompt included.
  virtual int context_length() const = 0;
  /// `capacity`: tokens that will be appended at most.
  virtual Result<std::unique_ptr<Sequence>> NewSequence(int capacity) = 0;
};

}  // namespace millrace::serve
