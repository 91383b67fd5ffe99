// Self-attention with its projections.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

#include "millrace/engine/layers/all_heads_norm.h"
#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/layers/linear.h"
#include "millrace/engine/layers/norm.h"
#include "millrace/engine/layers/rotary_positions.h"
#include "millrace/engine/ops/attention.h"

namespace millrace::engine {

/// x [N, hidden] → [N, hidden]: queries, keys and values, rotary positions if there is a table, softmax attention,
/// output projection. A value type.
struct SelfAttention {
  std::int64_t layer = 0;  ///< index in the KvCache
  ops::HeadLayout layout;  ///< this rank's heads
  ops::AttentionRule rule;
  const RotaryPositions* rotary = nullptr;  ///< borrowed from the model; null: no rotary positions
  Linear query_key_value, output;
  std::optional<Norm> query_norm, key_norm;  ///< of each head [head_dim], before the rotation (Qwen3)
  std::optional<AllHeadsNorm> all_queries_norm, all_keys_norm;  ///< of all heads together, before the rotation (OLMo 2)
  double dropout = 0;                                           ///< probability of dropping an attention probability
  std::uint64_t dropout_site = 0;  ///< the model's number for this place; no other place has it
  std::int64_t first_head = 0;     ///< of this rank's heads

  at::Tensor Forward(const ops::LayerInput& x, const ForwardContext& context) const;

 private:
  at::Tensor NormQueriesAndKeys(const at::Tensor& qkv) const;
  at::Tensor Attend(const at::Tensor& qkv, const ForwardContext& context) const;
};

}  // namespace millrace::engine
