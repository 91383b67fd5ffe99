// The MLP of a block: x [N, hidden] → [N, hidden].
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/layers/linear.h"
#include "millrace/engine/ops/activation.h"

namespace millrace::engine {

/// Returns `activate`(x) as the input of a layer. The backward pass of an activation function keeps x anyway.
template <class Activate>
ops::LayerInput ActivatedInput(const at::Tensor& x, const ForwardContext& context, Activate activate) {
  at::Tensor activated = activate(x);
  if (!context.selective_recompute) return activated;
  return {std::move(activated), [x = x.detach(), activate] {
            const at::NoGradGuard no_grad;
            return activate(x);
          }};
}

/// A linear layer, an activation, a linear layer (GPT-2, GPT-J, BERT). A value type.
struct Mlp {
  Linear up, down;
  ops::Activation activation = ops::Activation::kGeluTanh;
  at::Tensor Forward(const ops::LayerInput& x, const ForwardContext& context) const {
    return down.Forward(ActivatedInput(up.Forward(x, context), context,
                                       [kind = activation](const at::Tensor& up) { return ops::Activate(up, kind); }),
                        context);
  }
};

/// A gated MLP (Shazeer 2020): activation(gate) · up, then a linear layer. With silu, it is Llama's SwiGLU. A value
/// type.
struct GatedMlp {
  Linear gate_up, down;
  ops::Activation activation = ops::Activation::kSilu;
  at::Tensor Forward(const ops::LayerInput& x, const ForwardContext& context) const {
    return down.Forward(
        ActivatedInput(gate_up.Forward(x, context), context,
                       [kind = activation](const at::Tensor& gate_up) { return ops::Gated(gate_up, kind); }),
        context);
  }
};

}  // namespace millrace::engine
