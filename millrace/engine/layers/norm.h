// Normalisation of the residual stream.
#pragma once

#include <ATen/ATen.h>

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

 private:
  WeightHandle weight_, bias_;
  double eps_ = 0;
};

}  // namespace millrace::engine
