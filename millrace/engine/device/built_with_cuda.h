// A constant that says whether this program has kernels for NVIDIA GPUs. `if constexpr (kBuiltWithCuda)` around a call
// of ops/cuda leaves the call out of programs without them.
#pragma once

#include <ATen/ATen.h>

namespace millrace::engine::ops {

#ifdef MILLRACE_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

/// Returns whether the kernels of ops/cuda take this tensor.
inline bool IsOnCuda(const at::Tensor& x) { return kBuiltWithCuda && x.is_cuda(); }

}  // namespace millrace::engine::ops
