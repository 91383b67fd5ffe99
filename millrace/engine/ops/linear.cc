#include "millrace/engine/ops/linear.h"

#include "millrace/engine/ops/deferred/deferred_work.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {

at::Tensor LinearForward(const at::Tensor& x, const Weight& weight, const Weight& bias) {
  return Product(x.detach(), weight.value.detach().t(), bias.defined() ? bias.value.detach() : at::Tensor());
}

at::Tensor LinearInputGradient(const at::Tensor& dout, const Weight& weight) {
  return Product(dout, weight.value.detach());
}

void AddLinearGradients(const at::Tensor& x, const Weight& weight, const Weight& bias, const at::Tensor& dout) {
  if (weight.gradient.defined()) AddProduct(weight.gradient, dout.t(), x);
  if (bias.gradient.defined()) {
    at::Tensor into = bias.gradient;
    into.add_(dout.sum(0, /*keepdim=*/false, at::kFloat));
  }
}

namespace {

at::Tensor FusedLinear(const LayerInput& input, const Weight& weight, const Weight& bias) {
  const at::Tensor& x = input.value;
  at::Tensor out = LinearForward(x, weight, bias);
  if (Recording({x, weight.value, bias.value})) {
    const bool needs_x = weight.gradient.defined();
    const at::Tensor kept = needs_x && !input.again ? x.detach() : at::Tensor();
    Connect("Linear", {x, weight.value, bias.value}, {out},
            [kept, again = needs_x ? input.again : nullptr, weight, bias](TensorList&& gradients) {
              const at::Tensor& dout = gradients[0];
              RunOrDefer([=] { AddLinearGradients(again ? again() : kept, weight, bias, dout); });
              return TensorList{LinearInputGradient(dout, weight), at::Tensor(), at::Tensor()};
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

at::Tensor Linear(const LayerInput& x, const Weight& weight, const Weight& bias) {
  static const auto kernels = OnCpu("Linear", reference::Linear, FusedLinear, FusedLinear);
  const bool fused = !weight.autograd_adds() && !bias.autograd_adds();
  return fused ? kernels.For(x.value)(x, weight, bias) : reference::Linear(x, weight, bias);
}

at::Tensor AddBias(const at::Tensor& x, const Weight& bias) {
  static const auto kernels = OnCpu("AddBias", reference::AddBias, FusedAddBias, FusedAddBias);
  return bias.gradient.defined() ? kernels.For(x)(x, bias) : reference::AddBias(x, bias);
}

}  // namespace millrace::engine::ops
