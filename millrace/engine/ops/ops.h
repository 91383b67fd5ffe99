// The operations of a decoder. Each op has a composition of ATen calls (reference.h). For float32 and bfloat16 on a CPU
// it also has a fused implementation with its own backward. The functions here choose by device and type of the input.
// Outputs are new tensors; inputs are not changed. N is the number of tokens of all sequences. If Weight::gradient is
// defined, the gradient of the weight is added to it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "millrace/engine/ops/sequences.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine::ops {

/// Returns the rows `ids` (int64 [N]) of a table [vocab, hidden]: [N, hidden].
at::Tensor Embedding(const Weight& table, const at::Tensor& ids);

/// Returns the product of x [N, in] and the transpose of a weight [out, in]: [N, out].
at::Tensor Linear(const at::Tensor& x, const Weight& weight);

/// sum = x + delta (x itself if `delta` is undefined); out = the root-mean-square norm of the sum times `weight`
/// [hidden]. The norm is computed in float32 and cast down before the weight. Both are [N, hidden].
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
/// The layout of a row of [N, (heads + 2·kv_heads)·head_dim]: all queries, then all keys, then all values.
struct HeadLayout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
};
/// Returns qkv with queries and keys rotated by their positions. Values stay as they are.
at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences);

/// Returns causal softmax attention within each sequence, with scale 1/sqrt(head_dim): [N, heads·head_dim]. Consecutive
/// query heads share a key-value head. Works on blocks of queries, so that no [length, length] matrix is stored. Result
/// and cost of a sequence do not depend on the other sequences, bit for bit.
at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences);

/// Returns silu(gate) · up [N, columns] for gate_up [N, 2·columns] (gate, then up).
at::Tensor Swiglu(const at::Tensor& gate_up);

/// Returns the sum of the cross-entropies of x [N, hidden] by head [vocab, hidden], over labels (int64 [N]) that are
/// not kIgnoreLabel: a float32 scalar. Logits exist for a chunk of rows at a time. The forward pass computes the
/// gradients.
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const at::Tensor& labels);

inline constexpr std::int64_t kIgnoreLabel = -100;  // as in PyTorch's cross_entropy and in transformers

}  // namespace millrace::engine::ops
