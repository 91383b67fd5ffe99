// Normalisation of the residual stream.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// A layer norm if it has a bias, else a root-mean-square norm. A value type; LayerFactory makes it.
class Norm {
 public:
  Norm() = default;
  Norm(WeightHandle weight, WeightHandle bias, double eps) : weight_(weight), bias_(bias), eps_(eps) {}
  /// Returns x + delta and its norm. `delta` may be undefined.
  ops::Normed Forward(const at::Tensor& x, const at::Tensor& delta = {}) const {
    return bias_->defined() ? ops::AddLayerNorm(x, delta, *weight_, *bias_, eps_)
                            : ops::AddRmsNorm(x, delta, *weight_, eps_);
  }
  /// Returns what Forward() returned, as the input of a layer.
  ops::LayerInput Output(const ops::Normed& normed, const ForwardContext& context) const {
    if (!context.selective_recompute) return normed.out;
    return {normed.out, [norm = *this, sum = normed.sum.detach()] {
              const at::NoGradGuard no_grad;
              return norm.Forward(sum).out;
            }};
  }

 private:
  WeightHandle weight_, bias_;
  double eps_ = 0;
};

}  // namespace millrace::engine
