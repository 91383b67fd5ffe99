// A parameter as an op sees it: the weight and its gradient.
#pragma once

#include <ATen/ATen.h>

namespace millrace::engine {

/// The weight argument of an op: one parameter, or several that lie side by side, stacked along their first dimension.
struct Weight {
  at::Tensor value;     ///< requires grad once gradients are enabled; undefined: the layer has no such weight
  at::Tensor gradient;  ///< the op's backward adds to it; undefined: backward returns the gradient to autograd, if any

  bool defined() const { return value.defined(); }
  /// Returns whether an op leaves the gradient to autograd. If not, the op adds it, or the weight is frozen.
  bool autograd_adds() const { return value.defined() && value.requires_grad() && !gradient.defined(); }
};

}  // namespace millrace::engine
