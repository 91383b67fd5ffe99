// Normalisation of rows, joined with the addition of a residual before it.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// sum = x + delta (an alias of x if `delta` is undefined); out = the norm of the sum. Both are [N, hidden].
struct Normed {
  at::Tensor sum, out;
};

/// Root-mean-square norm (Zhang, Sennrich 2019) times `weight` [hidden]. The norm is computed in float32 and cast down
/// before the weight, as in transformers' LlamaRMSNorm.
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, double eps);

/// Layer norm (Ba, Kiros, Hinton 2016): mean 0, variance 1, times `weight` plus `bias` [hidden], all in float32, as in
/// PyTorch's layer_norm.
Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias, double eps);

}  // namespace millrace::engine::ops
