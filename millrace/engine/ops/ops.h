// What a decoder is made of. Each op has a composition of ATen calls (reference.h) and, for float32 and bfloat16 on a
// CPU, a fused one with its own backward; the functions here pick by the input's device. Outputs are new tensors;
// inputs are not changed. N counts tokens, of all sequences. Weight gradients are added to Weight::gradient where that
// is defined.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "millrace/engine/ops/sequences.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine::ops {

/// Rows `ids` (int64 [N]) of a table [vocab, hidden]: [N, hidden].
at::Tensor Embedding(const Weight& table, const at::Tensor& ids);

/// x [N, in] by the transpose of a weight [out, in]: [N, out].
at::Tensor Linear(const at::Tensor& x, const Weight& weight);

/// sum = x + delta (x itself when `delta` is undefined) and its root-mean-square norm times `weight` [hidden],
/// statistics in float32 and cast down before the weight. Both [N, hidden].
struct Normed {
  at::Tensor sum, out;
};
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, double eps);

/// Rotary position embedding, half-split form (Su et al. 2021; pairs j and j + head_dim/2).
struct RopeTable {
  at::Tensor cosine, sine;  ///< float32 [positions, head_dim/2]
  static RopeTable Make(std::int64_t positions, std::int64_t head_dim, double theta, at::Device device);
  std::int64_t positions() const { return cosine.size(0); }
};
/// How queries, keys and values lie in a row of [N, (heads + 2·kv_heads)·head_dim]: all queries, all keys, all values.
struct HeadLayout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
};
/// Queries and keys turned by their positions; values as they are.
at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences);

/// Causal softmax attention within each sequence, with scale 1/sqrt(head_dim); consecutive query heads share a
/// key-value head. Works on blocks of queries, so that no [length, length] matrix is stored. A sequence's result has
/// the same bits whatever stands beside it, and costs what it costs alone. [N, heads·head_dim].
at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences);

/// silu(gate) · up of [N, 2·columns] (gate, then up): [N, columns].
at::Tensor Swiglu(const at::Tensor& gate_up);

/// Sum over labels (int64 [N]) that are not -100 of the cross-entropy of x [N, hidden] by head [vocab, hidden]: a
/// float32 scalar. Logits exist a chunk of rows at a time; gradients are made in the forward pass.
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const at::Tensor& labels);

inline constexpr std::int64_t kIgnoreLabel = -100;

}  // namespace millrace::engine::ops
