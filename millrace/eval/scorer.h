// The log-likelihoods of texts under a model, many at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/serve/block_pool.h"
#include "millrace/serve/language_model.h"

namespace millrace::eval {

using serve::TokenId;

/// A request for the likelihood of the continuation after the context.
struct ScoreRequest {
  std::vector<TokenId> context;       ///< at least one token; tokens at its beginning are left out if it is too long
  std::vector<TokenId> continuation;  ///< at least one token, and no more than the model's context
  std::size_t group = 0;              ///< requests of one group begin alike: one after the other, they share that
};

struct Score {
  double logprob = 0;     ///< natural logarithm
  bool is_greedy = true;  ///< each of its tokens is the likeliest one
};

/// Scores requests on the caller's thread. Steps have parts of many texts, whose blocks of the KV cache are shared
/// where the texts begin alike. Uses all of the model's cache.
class Scorer {
 public:
  /// `most_texts`: in a step. REQUIRES: `model` outlives this object, and nobody else uses it meanwhile.
  Scorer(serve::LanguageModel& model, std::size_t most_texts)
      : model_(model), most_texts_(most_texts), pool_(model.cache()) {}

  /// Returns a score for each request, in their order. Calls `scored` after each. Blocks.
  /// Errors: kInvalidArgument if a continuation is longer than the model's context; kResourceExhausted if a text does
  /// not fit the cache; kInternal if the model's scores are not numbers; kCancelled; those of the model.
  Result<std::vector<Score>> Run(std::span<const ScoreRequest> requests, std::stop_token stop,
                                 const std::function<void()>& scored = {});
  std::uint64_t computed_tokens() const { return computed_tokens_; }

 private:
  struct ScoredSequence;
  Status Admit(std::span<const ScoreRequest> requests, std::list<std::size_t>& waiting);
  Result<bool> Begin(const ScoreRequest& request, std::size_t index);
  Status Step(std::vector<Score>& scores);
  Status AddScore(const ScoredSequence& text, std::size_t position, std::span<const float> logits, Score& score) const;

  /// A text that is being computed.
  struct ScoredSequence {
    std::size_t request = 0, group = 0;
    std::vector<TokenId> tokens;  ///< all but the last one, behind which nothing is predicted
    TokenId last = 0;
    std::size_t first_scored = 0;  ///< the first token whose logits count
    std::size_t stored = 0, published = 0;
    std::vector<std::int32_t> blocks;
  };
  serve::LanguageModel& model_;
  const std::size_t most_texts_;
  serve::BlockPool pool_;
  std::list<ScoredSequence> texts_;
  std::uint64_t computed_tokens_ = 0;
};

}  // namespace millrace::eval
