#include "millrace/engine/ops/linear.h"

#include "millrace/engine/ops/backward/deferred_work.h"
#include "millrace/engine/ops/backward/node.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/quantized/quantized_product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {

std::vector<at::Tensor> LinearWeights::InputsWith(const at::Tensor& x) const {
  std::vector<at::Tensor> inputs{x, matrix.value, bias.value};
  if (update.defined()) inputs.push_back(update.down.value);
  for (const LowRankUpdate::Module& module : update.modules) inputs.push_back(module.up.value);
  return inputs;
}

bool LinearWeights::adds_update_first(std::int64_t tokens) const {
  return codes && update.is_matrix() && update.down.value.scalar_type() == at::kFloat && tokens > codes->columns();
}

AddToRows LinearPass::AddsUpdate() const {
  return [this](std::int64_t first, const at::Tensor& rows) { weights_.update.AddTo(first, rows); };
}

at::Tensor LinearPass::Forward(const at::Tensor& x) {
  const at::Tensor bias = weights_.bias.defined() ? weights_.bias.value.detach() : at::Tensor();
  const bool first = weights_.adds_update_first(x.size(0));
  at::Tensor out = weights_.codes ? Product(x.detach(), *weights_.codes, bias, first ? AddsUpdate() : AddToRows())
                                  : Product(x.detach(), weights_.matrix.value.detach().t(), bias);
  if (weights_.update.defined() && !first) update_.AddOutput(x.detach(), out);
  return out;
}

at::Tensor LinearPass::InputGradient(const at::Tensor& dout) {
  const bool first = weights_.adds_update_first(dout.size(0));
  at::Tensor dx = weights_.codes ? ProductWithTranspose(dout, *weights_.codes, first ? AddsUpdate() : AddToRows())
                                 : Product(dout, weights_.matrix.value.detach());
  if (weights_.update.defined() && !first) update_.AddInputGradient(dout, dx);
  return dx;
}

void LinearPass::AddGradients(const at::Tensor& x, const at::Tensor& dout) {
  if (weights_.matrix.gradient.defined()) AddProduct(weights_.matrix.gradient, dout.t(), x);
  if (weights_.bias.gradient.defined()) {
    at::Tensor into = weights_.bias.gradient;
    into.add_(dout.sum(0, /*keepdim=*/false, at::kFloat));
  }
  if (weights_.update.defined()) update_.AddGradients(x, dout);
}

namespace {

at::Tensor FusedLinear(const LayerInput& input, const LinearWeights& weights) {
  const at::Tensor& x = input.value;
  auto pass = std::make_shared<LinearPass>(weights);
  at::Tensor out = pass->Forward(x);
  const TensorList inputs = weights.InputsWith(x);
  if (Recording(inputs)) {
    const bool needs_x = weights.needs_input();
    const at::Tensor kept = needs_x && !input.again ? x.detach() : at::Tensor();
    Connect("Linear", inputs, {out},
            [kept, again = needs_x ? input.again : nullptr, pass, wanted = x.requires_grad(),
             count = inputs.size()](TensorList&& gradients) {
              const at::Tensor& dout = gradients[0];
              RunOrDefer([=] { pass->AddGradients(again ? again() : kept, dout); });
              TensorList result(count);
              if (wanted) result[0] = pass->InputGradient(dout);
              return result;
            });
  }
  return out;
}

at::Tensor FusedAddBias(const at::Tensor& x, const Weight& bias) {
  at::Tensor out = x.detach() + bias.value.detach();
  if (Recording({x, bias.value})) {
    Connect("AddBias", {x, bias.value}, {out}, [bias](TensorList&& gradients) {
      return TensorList{gradients[0], AddOrReturn(bias, gradients[0].sum(0, /*keepdim=*/false, at::kFloat))};
    });
  }
  return out;
}

}  // namespace

at::Tensor Linear(const LayerInput& x, const LinearWeights& weights) {
  static const auto kernels = OnCpu("Linear", reference::Linear, FusedLinear, FusedLinear);
  return weights.takes_gradients() ? kernels.For(x.value)(x, weights) : reference::Linear(x, weights);
}

at::Tensor AddBias(const at::Tensor& x, const Weight& bias) {
  static const auto kernels = OnCpu("AddBias", reference::AddBias, FusedAddBias, FusedAddBias);
  return bias.gradient.defined() ? kernels.For(x)(x, bias) : reference::AddBias(x, bias);
}

}  // namespace millrace::engine::ops
