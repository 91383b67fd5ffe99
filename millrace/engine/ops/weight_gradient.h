// How a backward pass adds to the gradients of weights.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// Adds dy^T · x to `gradient`. A float32 product accumulates in place. A bfloat16 product needs a temporary.
inline void AddOuter(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  if (dy.scalar_type() == gradient.scalar_type()) {
    at::Tensor into = gradient;
    into.addmm_(dy.t(), x);
  } else {
    gradient.add_(at::mm(dy.t(), x));
  }
}

/// Adds gradient · scale to the weight's gradient, or returns it to autograd.
inline at::Tensor AddOrReturn(const Weight& weight, const at::Tensor& gradient, float scale = 1) {
  if (!weight.gradient.defined()) return (gradient * scale).to(weight.value.scalar_type());
  at::Tensor into = weight.gradient;
  into.add_(gradient, scale);
  return {};
}

}  // namespace millrace::engine::ops
