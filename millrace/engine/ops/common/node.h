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

/// Like Connect(), for a place in the graph that computes nothing: a trace does not show it.
void ConnectMarker(std::string name, const TensorList& inputs, TensorList outputs, Backward backward);

/// Goes back from `outputs` with their gradients (undefined: 1, of a scalar), on the calling thread. Autograd alone
/// would run the ops of a GPU on a thread of its own, which does not know what this one has chosen: KernelScope,
/// DeferredWork.
void RunBackward(const TensorList& outputs, const TensorList& gradients);

}  // namespace millrace::engine::ops
