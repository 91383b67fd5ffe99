// Products with weights.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// Returns the product of x [N, in] and the transpose of a weight [out, in], plus a bias [out] if that is defined:
/// [N, out].
at::Tensor Linear(const at::Tensor& x, const Weight& weight, const Weight& bias = {});

/// Returns x [N, columns] plus a bias [columns].
at::Tensor AddBias(const at::Tensor& x, const Weight& bias);

}  // namespace millrace::engine::ops
