// The initial values of parameters.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine {

/// Fill `run`, a contiguous float32 tensor, with elements `first` … of a tensor. The elements depend only on `key` and
/// their index. The distribution is normal (Box and Muller's transform of a counter-based generator), or uniform around
/// 0. On a GPU, some values differ from those of a CPU in the last bit.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);
void FillUniform(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);

}  // namespace millrace::engine
