// Draws a token from logits.
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
  double top_p = 1;        ///< draw among the likeliest tokens that together have this probability
  int top_k = 0;           ///< draw among the likeliest top_k tokens; 0: all
  std::uint64_t seed = 0;
  bool operator==(const SamplingOptions&) const = default;
};

/// Draws tokens. The same options and logits give the same tokens. Applies the temperature, then top_k, then top_p.
/// Never draws a token whose logit is NaN. One owner, no locking.
class Sampler {
 public:
  explicit Sampler(SamplingOptions options) : options_(options), random_(options.seed) {}
  /// Returns kNoToken if all logits are NaN. REQUIRES: logits is not empty.
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
