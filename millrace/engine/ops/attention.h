// Softmax attention.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>

#include "millrace/engine/ops/common/head_layout.h"
#include "millrace/engine/ops/common/sequences.h"
#include "millrace/engine/ops/dropout.h"

namespace millrace::engine::ops {

/// The keys that a query sees, and the scores of these keys.
struct AttentionRule {
  bool causal = true;       ///< only keys up to the query's own position
  std::int64_t window = 0;  ///< with `causal`: the number of last keys, the query's own included; 0: all
  double scale = 0;         ///< of the product of a query and a key; 0: 1/sqrt(head_dim)
  double softcap = 0;       ///< scores become softcap · tanh(score / softcap) (Gemma 2); 0: they stay
  double ScaleOf(std::int64_t head_dim) const {
    return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  /// Returns the keys that a query at `position` of a sequence of `length` tokens sees: [begin, end).
  std::int64_t begin(std::int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  std::int64_t end(std::int64_t position, std::int64_t length) const { return causal ? position + 1 : length; }
};

/// Returns softmax attention within each sequence, under the rule: [N, heads·head_dim]. Consecutive query heads share a
/// key-value head. `dropout` drops attention probabilities. Works on blocks of queries, so that no
/// [length, length] matrix is stored. Result and cost of a sequence do not depend on the other sequences, bit for bit.
at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule = {}, const DropoutSite& dropout = {});

}  // namespace millrace::engine::ops
