// How much each token of a vocabulary counts in a draw.
#pragma once

#include <cstddef>
#include <ranges>
#include <span>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// e^((logit - most) / temperature) of each token, to some units in the last place: the likeliest token has 1. Tokens
/// whose logit is NaN or -infinity have 0, and so have those below e^-700. Chunks of the vocabulary have their sums and
/// largest weights, so that few of its tokens are looked at twice.
class TokenWeights {
 public:
  /// Replaces all weights. Returns their sum. REQUIRES: `most`, the largest logit, is finite.
  double Compute(std::span<const float> logits, double most, double temperature);
  double operator[](TokenId token) const { return weights_[static_cast<std::size_t>(token)]; }

  std::size_t chunks() const { return sums_.size(); }
  auto TokensOf(std::size_t chunk) const {
    return std::views::iota(static_cast<TokenId>(chunk * kChunk), static_cast<TokenId>(End(chunk)));
  }

  /// Returns a weight that at least `count` tokens have, or 0 if no such weight is known.
  double LeastOfTop(std::size_t count);
  /// Appends the tokens of at least this weight, which is above 0, in the order of their ids.
  void Collect(double least, std::vector<TokenId>& tokens) const;

 private:
  static constexpr std::size_t kChunk = 64;
  std::size_t End(std::size_t chunk) const { return chunk + 1 < chunks() ? (chunk + 1) * kChunk : count_; }

  std::size_t count_ = 0;
  std::vector<double> weights_;  ///< with zeros up to a whole chunk
  std::vector<double> sums_, largest_, ranked_;
};

}  // namespace millrace::serve
