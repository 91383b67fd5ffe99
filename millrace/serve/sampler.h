// From scores to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

struct SamplingOptions {
  double temperature = 1;  ///< 0: always the likeliest token (of equals the first)
  double top_p = 1;        ///< draw among the likeliest tokens that together have this share of the probability
  int top_k = 0;           ///< draw among the likeliest top_k tokens; 0: all
  std::uint64_t seed = 0;
  bool operator==(const SamplingOptions&) const = default;
};

/// Draws tokens; the same options and logits give the same tokens. top_k is applied before top_p, the temperature
/// before both. Tokens whose logit is not a number are never drawn. One owner, no locking.
class Sampler {
 public:
  explicit Sampler(SamplingOptions options) : options_(options), random_(options.seed) {}
  /// `logits` must not be empty. Yields kNoToken if none of them is a number.
  TokenId Sample(std::span<const float> logits);

 private:
  void KeepTopK(std::span<const float> logits);
  void KeepTopP(std::span<const float> logits, double share, double most);
  double Weight(float logit, double most) const;

  const SamplingOptions options_;
  Random random_;
  std::vector<TokenId> candidates_;  ///< kept between calls for its memory
};

}  // namespace millrace::serve
