// The non-linear functions between the products of an MLP.
#pragma once

#include <ATen/ATen.h>

#include <string_view>

#include "millrace/base/result.h"

namespace millrace::engine::ops {

/// kGeluTanh is the approximation 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), kGelu the exact function with erf.
enum class Activation { kGelu, kGeluTanh, kRelu, kSilu };

/// Returns the activation that transformers calls `name` ("gelu_new", "gelu", "relu", "silu" …).
/// Errors: kUnsupported on other names; `what` names the configuration.
Result<Activation> ParseActivation(std::string_view name, std::string_view what);

/// Returns the function of each element of x [N, columns].
at::Tensor Activate(const at::Tensor& x, Activation activation);

/// Returns silu(gate) · up [N, columns] for gate_up [N, 2·columns] (gate, then up).
at::Tensor Swiglu(const at::Tensor& gate_up);

}  // namespace millrace::engine::ops
