#include "millrace/engine/ops/linear.h"

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/reference.h"
#include "millrace/engine/ops/weight_gradient.h"

namespace millrace::engine::ops {

at::Tensor Linear(const at::Tensor& x, const Weight& weight, const Weight& bias) {
  if (!HasFused(x) || !weight.gradient.defined()) return reference::Linear(x, weight, bias);
  const at::Tensor transposed = weight.value.detach().t();
  at::Tensor out =
      bias.defined() ? at::addmm(bias.value.detach(), x.detach(), transposed) : at::mm(x.detach(), transposed);
  if (Recording({x, weight.value})) {
    Connect("Linear", {x, weight.value, bias.value}, {out}, [x = x.detach(), weight, bias](TensorList&& gradients) {
      const at::Tensor& dout = gradients[0];
      AddOuter(weight.gradient, dout, x);
      weight.GradientAdded();
      if (bias.defined()) {
        at::Tensor into = bias.gradient;
        into.add_(dout.sum(0, /*keepdim=*/false, at::kFloat));
        bias.GradientAdded();
      }
      return TensorList{at::mm(dout, weight.value.detach()), at::Tensor(), at::Tensor()};
    });
  }
  return out;
}

}  // namespace millrace::engine::ops
