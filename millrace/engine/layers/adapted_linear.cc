#include "millrace/engine/layers/adapted_linear.h"

namespace millrace::engine {

at::Tensor AdaptedLinear(const at::Tensor& x, const ops::LinearWeights& weights, std::size_t layer,
                         std::span<const AdaptedRows> rows) {
  at::Tensor out = ops::Linear(x, weights);
  for (const AdaptedRows& each : rows) {
    const LayerUpdate& own = each.adapter->layers[layer];
    if (!own.update.defined()) continue;
    const at::Tensor in = x.narrow(0, each.first, each.count);
    at::Tensor into = out.narrow(0, each.first, each.count);
    const bool scales = own.factors.defined(), has_bias = weights.bias.defined();
    if (scales && has_bias) {
      // Magnitudes scale the products alone.
      ops::LinearWeights without_bias = weights;
      without_bias.bias = {};
      into.copy_(ops::Linear(in, without_bias));
    }
    ops::LowRankPass(own.update).AddOutput(in, into);
    if (!scales) continue;
    into.copy_((into * own.factors).to(into.scalar_type()));
    if (has_bias) into.add_(weights.bias.value);
  }
  return out;
}

}  // namespace millrace::engine
