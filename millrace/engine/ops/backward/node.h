// Connects an op's own backward function to autograd.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace millrace::engine::ops {

using TensorList = std::vector<at::Tensor>;
/// Maps gradients of the outputs (undefined if the pass has none) to gradients of the inputs (undefined if not needed).
using Backward = std::function<TensorList(TensorList&& output_gradients)>;

/// Returns whether autograd records and one of `inputs` requires grad. Only then is Connect() needed.
bool Recording(const TensorList& inputs);

/// Makes `outputs` the results of an op named `name` on `inputs`, with `backward` as its derivative. The closure runs
/// at most once and is freed right after, with its captures. There is no second derivative.
/// REQUIRES: `backward` captures outputs detached; otherwise output and closure keep each other alive.
void Connect(std::string name, const TensorList& inputs, TensorList outputs, Backward backward);

}  // namespace millrace::engine::ops
