// Rotary position embedding (Su et al. 2021).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "millrace/engine/ops/common/head_layout.h"
#include "millrace/engine/ops/common/sequences.h"

namespace millrace::engine::ops {

/// The pairs of dimensions of a head that are rotated: j and j + dim/2 (Llama), or 2j and 2j + 1 (GPT-J).
enum class RotaryPairs { kHalves, kNeighbours };

/// The rotations of every position. A value type; copies share memory.
struct RotaryTable {
  at::Tensor cosine, sine;  ///< float32 [positions, dim/2]
  RotaryPairs pairs = RotaryPairs::kHalves;
  /// `frequencies` has the angle per position of each pair. `scale` is a factor of what is rotated.
  static RotaryTable Make(std::int64_t positions, std::span<const float> frequencies, RotaryPairs pairs,
                          at::Device device, double scale = 1);
  std::int64_t positions() const { return cosine.size(0); }
  std::int64_t dim() const { return 2 * cosine.size(1); }  ///< the number of a head's first dimensions that are rotated
};
/// Returns theta^(-2j/dim) for j = 0 … dim/2-1.
std::vector<float> RotaryFrequencies(std::int64_t dim, double theta);

/// Returns qkv with the first table.dim() dimensions of each query and key head rotated by the token's position. The
/// rest stays as it is.
/// Throws c10::Error if a position is beyond the table.
at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences);

}  // namespace millrace::engine::ops
