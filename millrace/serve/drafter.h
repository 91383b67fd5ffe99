// Guesses what texts say next with a small model, so that the large one computes several of their tokens in one step
// (speculative decoding: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding").
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "millrace/serve/block_pool.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

/// A small model with a KV cache of its own. It guesses with a copy of a text's sampler, which has the text's random
/// numbers: so a guess is what the text says next if the two models agree. The large model draws each token from its
/// own logits whatever was guessed, and a text is the same with any draft and without one. One owner, no locking.
///
/// Leviathan's rule gives the large model's distribution too, but its texts depend on the guesses, and so on how many
/// texts run. Draws that share random numbers do not (Daliri et al. 2024, "Coupling without Communication and
/// Drafter-Invariant Speculative Decoding"). Where the models' distributions have the total variation distance d, a
/// guess is right with a probability of at least (1 - d) / (1 + d); under Leviathan's rule that is 1 - d.
class Drafter {
 public:
  /// The state of one text in the small model.
  struct Sequence {
    std::vector<std::int32_t> blocks;
    std::size_t stored = 0;             ///< tokens in the blocks: of the text, and then of the last guesses
    std::size_t sure = 0;               ///< of them, those of the text
    std::vector<TokenId> guessed = {};  ///< the others
    std::size_t published = 0;          ///< of the blocks
  };
  /// One text whose next tokens are to be guessed. Borrowed by the call.
  struct DraftRequest {
    Sequence* sequence = nullptr;
    std::span<const TokenId> tokens = {};  ///< of the text so far
    const Sampler* sampler = nullptr;      ///< that draws its next token
    std::size_t most = 0;                  ///< the most guesses
    std::span<const TokenId> ends = {};    ///< tokens that end the text: the last guesses
    std::vector<TokenId> guesses = {};     ///< the result
  };

  /// `chunk`: tokens of a text that are read in a call. A text that has more of them gets no guesses yet.
  /// REQUIRES: `model` outlives this object.
  explicit Drafter(LanguageModel& model, std::size_t chunk = 256)
      : model_(model), chunk_(chunk), pool_(model.cache()) {}

  /// Guesses the next tokens of texts, together. A text gets none if the cache or the model's context has no room.
  /// Errors: those of the model; no text then has guesses.
  Status DraftTokens(std::span<DraftRequest> wanted);
  /// The text has ended.
  void Release(Sequence& sequence);

 private:
  /// A text in a call: its sampler goes on from guess to guess.
  struct Turn {
    DraftRequest* wanted = nullptr;
    Sampler sampler;
    std::span<const TokenId> tokens;  ///< to be computed next
  };
  bool Prepare(DraftRequest& wanted);
  Status Step(std::list<Turn>& turns);

  LanguageModel& model_;
  const std::size_t chunk_;
  BlockPool pool_;
};

}  // namespace millrace::serve
