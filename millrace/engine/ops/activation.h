// Functions that are applied element by element, between the products of a block.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/config/activation.h"

namespace millrace::engine::ops {

using engine::Activation;

/// Returns the function of each element of x [N, columns].
at::Tensor Activate(const at::Tensor& x, Activation activation);

/// Returns silu(gate) · up [N, columns] for gate_up [N, 2·columns] (gate, then up).
at::Tensor Swiglu(const at::Tensor& gate_up);

/// Returns a + b, of the same shape.
at::Tensor Add(const at::Tensor& a, const at::Tensor& b);

}  // namespace millrace::engine::ops
