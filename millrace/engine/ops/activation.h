// Functions that are applied element by element, between the products of a block.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/config/activation.h"

namespace millrace::engine::ops {

using engine::Activation;

/// Returns the function of each element of x [N, columns].
at::Tensor Activate(const at::Tensor& x, Activation activation);

/// Returns activation(gate) · up [N, columns] for gate_up [N, 2·columns] (gate, then up): SwiGLU with silu, GeGLU with
/// a GELU (Shazeer 2020). The backward pass keeps gate_up alone.
at::Tensor Gated(const at::Tensor& gate_up, Activation activation);

/// Returns a + b, of the same shape.
at::Tensor Add(const at::Tensor& a, const at::Tensor& b);

}  // namespace millrace::engine::ops
