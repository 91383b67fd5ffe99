// The MLP of a block: x [N, hidden] → [N, hidden].
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/layers/linear.h"
#include "millrace/engine/ops/activation.h"

namespace millrace::engine {

/// A linear layer, an activation, a linear layer (GPT-2, GPT-J, BERT). A value type.
struct Mlp {
  Linear up, down;
  ops::Activation activation = ops::Activation::kGeluTanh;
  at::Tensor Forward(const at::Tensor& x) const { return down.Forward(ops::Activate(up.Forward(x), activation)); }
};

/// SwiGLU (Shazeer 2020; Llama): silu(gate) · up, then a linear layer. A value type.
struct GatedMlp {
  Linear gate_up, down;
  at::Tensor Forward(const at::Tensor& x) const { return down.Forward(ops::Swiglu(gate_up.Forward(x))); }
};

}  // namespace millrace::engine
