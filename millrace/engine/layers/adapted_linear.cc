#include "millrace/engine/layers/adapted_linear.h"

namespace millrace::engine {

at::Tensor AdaptedLinear(const at::Tensor& x, const ops::LinearWeights& weights, std::size_t layer,
                         std::span<const AdaptedRows> rows) {
  at::Tensor out = ops::Linear(x, weights);
  std::vector<ops::UpdatedRows> updated;
  std::vector<at::Tensor> without_bias;  // rows to which the bias is still to be added
  for (const AdaptedRows& each : rows) {
    const LayerUpdate& own = each.adapter->layers[layer];
    if (!own.update.defined()) continue;
    const at::Tensor in = x.narrow(0, each.first, each.count);
    at::Tensor into = out.narrow(0, each.first, each.count);
    if (own.factors.defined() && weights.bias.defined()) {
      // Magnitudes scale the products alone.
      ops::LinearWeights products = weights;
      products.bias = {};
      into.copy_(ops::Linear(in, products));
      without_bias.push_back(into);
    }
    updated.push_back({&own.update, in, into, own.factors});
  }
  ops::AddUpdates(updated);
  for (at::Tensor& into : without_bias) into.add_(weights.bias.value);
  return out;
}

}  // namespace millrace::engine
