#include "millrace/serve/sampler.h"

#include <algorithm>
#include <cmath>

namespace millrace::serve {
namespace {

/// Likelier tokens first; of equals the one with the lower id, so that no order is left to chance.
auto Likelier(std::span<const float> logits) {
  return [logits](TokenId a, TokenId b) {
    float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

}  // namespace

double Sampler::Weight(float logit, double most) const { return std::exp((logit - most) / options_.temperature); }

TokenId Sampler::Sample(std::span<const float> logits) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i]) && logits[i] > -INFINITY) candidates_.push_back(static_cast<TokenId>(i));
  }
  if (candidates_.empty()) return tokenizer::kNoToken;
  TokenId best = *std::min_element(candidates_.begin(), candidates_.end(), Likelier(logits));
  double most = logits[static_cast<std::size_t>(best)];
  if (options_.temperature <= 0 || std::isinf(most)) return best;

  if (options_.top_k > 0) KeepTopK(logits);
  if (options_.top_p < 1) KeepTopP(logits, options_.top_p, most);
  double total = 0;
  for (TokenId id : candidates_) total += Weight(logits[static_cast<std::size_t>(id)], most);
  double left = random_.Uniform() * total;
  for (TokenId id : candidates_) {
    left -= Weight(logits[static_cast<std::size_t>(id)], most);
    if (left < 0) return id;
  }
  return best;  // rounding used up the last bit of the total
}

void Sampler::KeepTopK(std::span<const float> logits) {
  auto k = static_cast<std::size_t>(options_.top_k);
  if (k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k), candidates_.end(),
                   Likelier(logits));
  candidates_.resize(k);
  std::sort(candidates_.begin(), candidates_.end());
}

/// A few tokens usually have nearly all of the probability: sorts as many as it takes, not the whole vocabulary.
void Sampler::KeepTopP(std::span<const float> logits, double share, double most) {
  double total = 0;
  for (TokenId id : candidates_) total += Weight(logits[static_cast<std::size_t>(id)], most);
  double sum = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 64; kept < candidates_.size(); sorted *= 8) {
    std::size_t end = std::min(sorted, candidates_.size());
    std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(kept),
                      candidates_.begin() + static_cast<std::ptrdiff_t>(end), candidates_.end(), Likelier(logits));
    while (kept < end) {
      sum += Weight(logits[static_cast<std::size_t>(candidates_[kept++])], most);
      if (sum >= share * total) return candidates_.resize(kept);
    }
  }
}

}  // namespace millrace::serve
