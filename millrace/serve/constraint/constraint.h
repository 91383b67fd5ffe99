// A constraint on a text's tokens: allows those with which the text keeps the form that a request wants.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/serve/constraint/grammar.h"
#include "millrace/serve/constraint/machine.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The tokens that add bytes, in the order of their bytes. Special tokens add none. Immutable.
class TokenBytes {
 public:
  struct Entry {
    std::string bytes;
    TokenId token = 0;
    std::uint32_t shared = 0;  ///< bytes at the beginning that the entry before has too
  };
  explicit TokenBytes(const tokenizer::Tokenizer& tokenizer);
  const std::vector<Entry>& entries() const { return entries_; }
  int vocab_size() const { return vocab_size_; }
  /// Returns the bytes of a token; empty for one that adds none.
  const std::string& BytesOf(TokenId token) const;

 private:
  int vocab_size_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> places_;  ///< by token; -1: none
};

/// A grammar over the tokens of a vocabulary (Willard and Louf 2023; with a stack, as in Dong et al. 2024). What it
/// finds out about a state is kept, so that texts of the same form share it. Thread-safe.
class Constraint {
 public:
  /// The place where a text has arrived. Each text has one of its own, whatever other texts do.
  class State {
   public:
    State() = default;
    /// Returns whether no text goes on from here.
    bool dead() const { return arrival_ == nullptr; }

   private:
    friend class Constraint;
    std::shared_ptr<const GrammarMachine::Arrival> arrival_;
    // The machine's number of the arrival, in that generation of the machine's states.
    GrammarMachine::State number_ = GrammarMachine::kDead;
    std::uint32_t generation_ = 0;
    std::int64_t work_ = 0;  ///< that the masks of the text have cost
  };
  /// REQUIRES: `vocabulary` outlives this object.
  Constraint(Grammar grammar, std::shared_ptr<const TokenBytes> vocabulary)
      : vocabulary_(std::move(vocabulary)), machine_(std::move(grammar)) {}

  State start() MR_EXCLUDES(mutex_);
  /// Returns whether a third of all stacks exist. New texts then want a new object of the same grammar, so that the
  /// texts of this one have stacks left.
  bool worn() const MR_EXCLUDES(mutex_);
  /// Returns the memory of the states.
  std::size_t bytes() const MR_EXCLUDES(mutex_);
  /// Sets the logits of all tokens that may not follow to -infinity. `ends`: tokens that may follow where a text may
  /// end. Returns whether any may. Where it would take too long to look at all tokens, only short ones are left. The
  /// tokens that are left depend on the text alone, not on other texts. A text whose masks took very long has none.
  bool Mask(State& state, std::span<const TokenId> ends, std::span<float> logits) MR_EXCLUDES(mutex_);
  /// Returns the state behind a token that Mask() left; dead behind an end token.
  State Accept(State state, TokenId token) MR_EXCLUDES(mutex_);

 private:
  struct Allowed {
    std::vector<std::uint64_t> tokens;  ///< bit t % 64 of word t / 64: token t may follow
    std::int64_t work = 0;              ///< that it cost
  };
  const Allowed& AllowedIn(GrammarMachine::State state) MR_REQUIRES(mutex_);
  /// Allows tokens of at most `most_bytes`. Returns false, with some of them, if that takes more than `most_work`.
  bool Allow(GrammarMachine::State state, std::size_t most_bytes, std::int64_t most_work, Allowed& allowed)
      MR_REQUIRES(mutex_);
  /// Makes the number of a state right, and gives memory back.
  void Renew(State& state) MR_REQUIRES(mutex_);

  const std::shared_ptr<const TokenBytes> vocabulary_;
  mutable Mutex mutex_;
  GrammarMachine machine_ MR_GUARDED_BY(mutex_);
  std::unordered_map<GrammarMachine::State, Allowed> allowed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::serve
