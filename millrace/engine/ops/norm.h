// Normalisation of rows, joined with the addition of a residual before it.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// sum = x + delta (an alias of x if `delta` is undefined); out = the norm of the sum. Both are [N, hidden].
struct Normed {
  at::Tensor sum, out;
};

struct RmsNormOptions {
  double eps = 0;     ///< is added to the mean square
  double offset = 0;  ///< is added to the weight, in float32: 1 in Gemma, whose weights begin at 0
};

/// Root-mean-square norm (Zhang, Sennrich 2019) times offset + `weight` [hidden]. The norm is computed in float32 and
/// cast down before the weight, as in transformers' LlamaRMSNorm; with an offset after it, as in Gemma2RMSNorm.
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options);

/// Layer norm (Ba, Kiros, Hinton 2016): mean 0, variance 1, times `weight` plus `bias` [hidden], all in float32, as in
/// PyTorch's layer_norm.
Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias, double eps);

}  // namespace millrace::engine::ops
