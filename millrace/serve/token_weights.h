// Computes the weight of each token of a vocabulary, with which a token is drawn.
#pragma once

#include <cstddef>
#include <ranges>
#include <span>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The weights e^((logit - most) / temperature) of all tokens, exact to some units in the last place. The likeliest
/// token has the weight 1. A token has the weight 0 if its logit is NaN or -infinity, or if the weight is below e^-700.
/// The vocabulary is divided into chunks. Each chunk has its sum and its largest weight, so that a search looks at few
/// tokens twice.
class TokenWeights {
 public:
  /// Replaces all weights. Returns their sum. REQUIRES: `most`, the largest logit, is finite.
  double Compute(std::span<const float> logits, double most, double temperature);
  double operator[](TokenId token) const { return weights_[static_cast<std::size_t>(token)]; }

  std::size_t chunks() const { return sums_.size(); }
  auto TokensOf(std::size_t chunk) const {
    return std::views::iota(static_cast<TokenId>(chunk * kChunk), static_cast<TokenId>(End(chunk)));
  }

  /// Returns a weight such that at least `count` tokens have this weight or more. Returns 0 if no such weight is known.
  double LeastOfTop(std::size_t count);
  /// Appends all tokens whose weight is at least `least`, in the order of their ids. REQUIRES: least > 0.
  void Collect(double least, std::vector<TokenId>& tokens) const;

 private:
  static constexpr std::size_t kChunk = 64;
  std::size_t End(std::size_t chunk) const { return chunk + 1 < chunks() ? (chunk + 1) * kChunk : count_; }

  std::size_t count_ = 0;
  std::vector<double> weights_;  ///< padded with zeros to a whole chunk
  std::vector<double> sums_, largest_, ranked_;
};

}  // namespace millrace::serve
