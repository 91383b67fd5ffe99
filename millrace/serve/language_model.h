// The server's interface of a model: the logits of the next token. engine/ implements it, and a scripted model in
// tests.
#pragma once

#include <memory>
#include <span>

#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// One text that is being generated, with the state (keys and values) of its tokens.
class Sequence {
 public:
  virtual ~Sequence() = default;
  /// Appends tokens and returns the logits of the next token: vocab_size() numbers, valid until the next call. Computes
  /// on the caller's thread. REQUIRES: tokens is not empty.
  virtual Result<std::span<const float>> Append(std::span<const TokenId> tokens) = 0;
};

/// A model. One thread at a time, the scheduler's, uses it and its sequences. It outlives its sequences.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual int vocab_size() const = 0;
  /// Returns the maximum number of tokens in a sequence, prompt included.
  virtual int context_length() const = 0;
  /// `capacity`: the maximum number of tokens that will be appended.
  virtual Result<std::unique_ptr<Sequence>> NewSequence(int capacity) = 0;
};

}  // namespace millrace::serve
