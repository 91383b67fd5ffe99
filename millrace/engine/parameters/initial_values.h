// The initial values of parameters.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine {

/// Fill `run`, a contiguous float32 tensor, with elements `first` … of a tensor whose elements depend only on `key` and
/// their index: with a normal distribution (Box and Muller's transform of a counter-based generator), or a uniform one
/// around 0. On a GPU, some values differ from those of a CPU in the last bit.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);
void FillUniform(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);

}  // namespace millrace::engine
