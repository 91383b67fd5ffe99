// Kernels of initial values, over raw memory of the GPU.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

/// Fill into[0 … count) with elements `first` … of a tensor: see parameters/initial_values.h.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream);
void FillUniform(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream);

}  // namespace millrace::engine::cuda
