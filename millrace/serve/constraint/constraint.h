// A constraint on a text's tokens: allows those with which the text keeps the form that a request wants.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/serve/constraint/grammar.h"
#include "millrace/serve/constraint/machine.h"
#include "millrace/serve/constraint/vocabulary.h"

namespace millrace::serve {

/// A grammar over the tokens of a vocabulary (Willard and Louf 2023; with a stack, as in Dong et al. 2024). What it
/// finds out about a state is kept, so that texts of the same form share it. Thread-safe.
class Constraint {
 public:
  using State = GrammarMachine::State;
  /// REQUIRES: `vocabulary` outlives this object.
  Constraint(Grammar grammar, std::shared_ptr<const TokenBytes> vocabulary)
      : vocabulary_(std::move(vocabulary)), machine_(std::move(grammar)) {}

  State start() const MR_EXCLUDES(mutex_);
  /// Returns whether a third of all states exist. New texts then want a new object of the same grammar, so that the
  /// texts of this one have states left.
  bool worn() const MR_EXCLUDES(mutex_);
  /// Sets the logits of all tokens that may not follow to -infinity. `ends`: tokens that may follow where a text may
  /// end. Returns whether any may.
  bool Mask(State state, std::span<const TokenId> ends, std::span<float> logits) MR_EXCLUDES(mutex_);
  /// Returns the state behind a token that Mask() left; dead behind an end token.
  State Accept(State state, TokenId token) MR_EXCLUDES(mutex_);

 private:
  /// Bit t: token t may follow.
  using Allowed = std::vector<std::uint64_t>;
  const Allowed& AllowedIn(State state) MR_REQUIRES(mutex_);

  const std::shared_ptr<const TokenBytes> vocabulary_;
  mutable Mutex mutex_;
  GrammarMachine machine_ MR_GUARDED_BY(mutex_);
  std::unordered_map<State, Allowed> allowed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::serve
