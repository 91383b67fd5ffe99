// Draws a token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "millrace/serve/constraint/constraint.h"
#include "millrace/serve/token_weights.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The options by which a token follows from logits. The members stand in the order in which they are applied.
struct SamplingOptions {
  std::vector<std::pair<TokenId, double>> bias;  ///< added to the logits of these tokens
  /// Makes tokens of the prompt and of the text so far less likely: positive logits are divided by it, others
  /// multiplied (Keskar et al. 2019, CTRL). 1: no penalty.
  double repetition_penalty = 1;
  double presence_penalty = 0;   ///< subtracted from the logits of tokens that the text has
  double frequency_penalty = 0;  ///< subtracted once for each time that the text has the token
  double temperature = 1;        ///< 0: always the likeliest token (of equals the first)
  int top_k = 0;                 ///< draw among the likeliest top_k tokens; 0: all
  double top_p = 1;              ///< draw among the likeliest tokens that together have this probability
  double min_p = 0;              ///< draw among the tokens that have this share of the likeliest one's probability
  /// Draw among the tokens whose surprise is nearest to the expected one, and that together have this probability
  /// (Meister et al. 2022, locally typical sampling).
  double typical_p = 1;
  /// Draw among the tokens after which the text still fits. Comes before temperature. Null: every text does.
  std::shared_ptr<Constraint> constraint = {};
  int min_tokens = 0;  ///< a text has at least as many before one of `ends`
  /// With a constraint or min_tokens: tokens that end a text.
  std::vector<TokenId> ends = {};
  std::uint64_t seed = 0;
  std::optional<int> logprobs = {};  ///< return log-probabilities: of the token, and of this many likeliest ones
  bool operator==(const SamplingOptions&) const = default;
};

/// Natural logarithms of probabilities under the model itself, before bias, penalties and temperature.
struct TokenLogprob {
  TokenId token = tokenizer::kNoToken;
  double logprob = 0;
};

struct SampledToken {
  TokenId token = tokenizer::kNoToken;
  double logprob = 0;                   ///< only with SamplingOptions::logprobs
  std::vector<TokenLogprob> likeliest;  ///< only with SamplingOptions::logprobs; the likeliest first
};

/// Memory of a draw, of some bytes for each token of the vocabulary. Nothing in it lasts from one draw to the next.
struct SamplingMemory {
  TokenWeights weights;
  std::vector<TokenId> candidates;
  std::vector<float> adjusted;  ///< logits with bias, penalties and the constraint
};

/// Draws the tokens of one text. The same options, prompt and logits give the same tokens. Never draws a token whose
/// logit is NaN. One owner, no locking. A copy goes on with the same random numbers: with logits that are nearly the
/// same, it draws the same token with a probability near to the greatest possible one (Drafter).
class Sampler {
 public:
  /// `prompt`: the tokens before the text, which count for the repetition penalty. `memory`: null for one of its own.
  /// Samplers and copies that share it have one owner together.
  explicit Sampler(SamplingOptions options, std::span<const TokenId> prompt = {},
                   std::shared_ptr<SamplingMemory> memory = nullptr);
  /// Returns kNoToken if all logits are NaN, or no token fits the constraint. REQUIRES: logits is not empty.
  SampledToken Sample(std::span<const float> logits);
  /// Returns `token` with the log-probabilities that the options want of it and of the likeliest tokens.
  SampledToken WithLogprobs(std::span<const float> logits, TokenId token) const;
  /// Returns whether the constraint left no token: the text cannot go on within its limits.
  bool stuck() const { return stuck_; }

 private:
  TokenId Draw(std::span<const float> logits);
  std::span<const float> Adjust(std::span<const float> logits);
  void KeepTopK(std::span<const float> logits);
  void KeepTopP(std::span<const float> logits, double total);
  void KeepTypical();
  TokenId Race();
  double TotalOfCandidates() const;
  void TellLogprobs(std::span<const float> logits, SampledToken& sampled) const;

  const SamplingOptions options_;
  std::uint64_t draws_ = 0;
  int made_ = 0;             ///< tokens
  Constraint::State state_;  ///< of the text so far
  bool stuck_ = false;
  std::unordered_set<TokenId> seen_;            ///< in the prompt or the text; only for the repetition penalty
  std::unordered_map<TokenId, int> frequency_;  ///< in the text; only for its penalties
  std::shared_ptr<SamplingMemory> memory_;
};

}  // namespace millrace::serve
