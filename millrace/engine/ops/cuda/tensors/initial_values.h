// Initial values of parameters, on the GPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine::ops::cuda {

/// As in parameters/parameter_buffer.cc.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);
void FillUniform(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run);

}  // namespace millrace::engine::ops::cuda
