// What an op sees of a parameter.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine {

class ParameterBuffer;

/// The weight argument of an op: one parameter, or several that lie side by side, stacked along their first dimension.
struct Weight {
  at::Tensor value;     ///< requires grad once gradients are enabled; undefined: the layer has no such weight
  at::Tensor gradient;  ///< the op's backward adds to it; undefined: backward returns the gradient to autograd
  ParameterBuffer* owner = nullptr;
  std::int64_t begin = 0, end = 0;  ///< elements of the owner's buffers

  bool defined() const { return value.defined(); }
  /// Reports that an op's backward has added to `gradient` (ParameterBuffer::on_gradient).
  void GradientAdded() const;
};

}  // namespace millrace::engine
