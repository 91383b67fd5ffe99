// Maps the types of tensors to the element types of kernels.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::ops::cuda {

/// Returns the element type of a tensor. Throws c10::Error if kernels do not take it.
inline engine::cuda::Element ElementOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return engine::cuda::Element::kFloat;
    case at::kBFloat16:
      return engine::cuda::Element::kBfloat16;
    case at::kHalf:
      return engine::cuda::Element::kHalf;
    default:
      TORCH_CHECK(false, "kernels of GPUs take float32, bfloat16 and float16, not ", type);
  }
}
inline engine::cuda::Element ElementOf(const at::Tensor& x) { return ElementOf(x.scalar_type()); }

}  // namespace millrace::engine::ops::cuda
