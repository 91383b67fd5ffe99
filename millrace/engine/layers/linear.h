// The product with a weight matrix.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/linear.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// x [N, in] → [N, out]. A value type; LayerFactory makes it.
class Linear {
 public:
  Linear() = default;
  Linear(WeightHandle weight, WeightHandle bias) : weight_(weight), bias_(bias) {}
  at::Tensor Forward(const at::Tensor& x) const { return ops::Linear(x, *weight_, *bias_); }
  const Weight& weight() const { return *weight_; }
  const Weight& bias() const { return *bias_; }  ///< undefined if there is none

 private:
  WeightHandle weight_, bias_;
};

}  // namespace millrace::engine
