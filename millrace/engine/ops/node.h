// Hooks an op's own backward into autograd.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace millrace::engine::ops {

using TensorList = std::vector<at::Tensor>;
/// Gradients of the outputs (undefined where nobody asked) to gradients of the inputs (undefined where not needed).
using Backward = std::function<TensorList(TensorList&& output_gradients)>;

/// True when autograd records and one of `inputs` requires grad: only then is Connect worth its captures.
bool Recording(const TensorList& inputs);

/// Makes `outputs` the results of an op named `name` on `inputs`, with `backward` as its derivative. The closure runs
/// at most once and is freed, with what it captured, right after. It must capture outputs detached, else they keep each
/// other alive. There is no second derivative.
void Connect(std::string name, const TensorList& inputs, TensorList outputs, Backward backward);

}  // namespace millrace::engine::ops
