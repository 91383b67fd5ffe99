// Normalizes the residual stream in front of a layer.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// The norm of a block: a layer norm if there is a bias, else a root-mean-square norm. A value type. LayerFactory makes
/// it.
class Norm {
 public:
  Norm() = default;
  /// `options`: of a root-mean-square norm. A layer norm has no offset, and adds options.eps to the variance.
  Norm(WeightHandle weight, WeightHandle bias, ops::RmsNormOptions options)
      : weight_(weight), bias_(bias), options_(options) {}
  /// Returns the sum x + delta, and the norm of the sum. An undefined `delta` counts as zero.
  ops::Normed Forward(const at::Tensor& x, const at::Tensor& delta = {}) const {
    return bias_->defined() ? ops::AddLayerNorm(x, delta, *weight_, *bias_, options_.eps)
                            : ops::AddRmsNorm(x, delta, *weight_, options_);
  }
  /// Returns the norm in `normed` as the input of a layer. With selective recomputation, the backward pass computes the
  /// norm again instead of keeping it.
  ops::LayerInput Output(const ops::Normed& normed, const ForwardContext& context) const {
    if (!context.selective_recompute) return normed.out;
    return {normed.out, [norm = *this, sum = normed.sum.detach()] {
              const at::NoGradGuard no_grad;
              return norm.Forward(sum).out;
            }};
  }

 private:
  WeightHandle weight_, bias_;
  ops::RmsNormOptions options_;
};

}  // namespace millrace::engine
