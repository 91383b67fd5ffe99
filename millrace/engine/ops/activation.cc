#include "millrace/engine/ops/activation.h"

#include <fmt/format.h>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Calls `work` with a value of the kernel's type for the activation.
template <class Work>
void DispatchActivation(Activation activation, Work&& work) {
  switch (activation) {
    case Activation::kGelu:
      return work(cpu::GeluErf{});
    case Activation::kGeluTanh:
      return work(cpu::GeluTanh{});
    case Activation::kSilu:
      return work(cpu::Silu{});
    case Activation::kRelu:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "no kernel for this activation");
}

template <class T>
at::Tensor FusedActivate(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) return reference::Activate(x, activation);  // ATen's is one pass already
  at::Tensor out = at::empty_like(x);
  DispatchActivation(activation, [&]<class Function>(Function) {
    ParallelRows(x.numel(), 1, [&](cpu::Rows part) {
      cpu::ActivateForward<Function>(Data<T>(x), Data<T>(out), part.begin, part.end);
    });
  });
  if (Recording({x})) {
    Connect("Activate", {x}, {out}, [x = x.detach(), activation](TensorList&& gradients) {
      const at::Tensor dout = gradients[0].contiguous();
      at::Tensor dx = at::empty_like(x);
      DispatchActivation(activation, [&]<class Function>(Function) {
        ParallelRows(x.numel(), 1, [&](cpu::Rows part) {
          cpu::ActivateBackward<Function>(Data<T>(dout), Data<T>(x), Data<T>(dx), part.begin, part.end);
        });
      });
      return TensorList{dx};
    });
  }
  return out;
}

/// Forward and Backward are the kernels of one activation.
template <class T, class Forward, class BackwardKernel>
at::Tensor GatedRows(const at::Tensor& gate_up) {
  const std::int64_t rows = gate_up.size(0), columns = gate_up.size(1) / 2;
  at::Tensor out = at::empty({rows, columns}, gate_up.options());
  const Forward kernel{Data<T>(gate_up), Data<T>(out), columns};
  ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
  if (Recording({gate_up})) {
    Connect("Gated", {gate_up}, {out}, [saved = gate_up.detach(), rows, columns](TensorList&& gradients) {
      const at::Tensor dout = gradients[0].contiguous();
      at::Tensor dgate_up = at::empty_like(saved);
      const BackwardKernel backward{Data<T>(dout), Data<T>(saved), Data<T>(dgate_up), columns};
      ParallelRows(rows, columns, [&](cpu::Rows part) { backward.Run(part); });
      return TensorList{dgate_up};
    });
  }
  return out;
}

template <class T>
at::Tensor FusedGated(const at::Tensor& gate_up, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return GatedRows<T, cpu::SwigluForward<T>, cpu::SwigluBackward<T>>(gate_up);
    case Activation::kGeluTanh:
      return GatedRows<T, cpu::GegluForward<T>, cpu::GegluBackward<T>>(gate_up);
    case Activation::kGelu:
    case Activation::kRelu:
      break;
  }
  return reference::Gated(gate_up, activation);
}

at::Tensor PlainAdd(const at::Tensor& a, const at::Tensor& b) { return a + b; }

}  // namespace

at::Tensor Activate(const at::Tensor& x, Activation activation) {
  static const auto kernels = AndOnCuda(
      OnCpu("Activate", reference::Activate, FusedActivate<float>, FusedActivate<cpu::Bf16>), InCuda<cuda::Activate>());
  return kernels.For(x)(x, activation);
}

at::Tensor Gated(const at::Tensor& gate_up, Activation activation) {
  static const auto kernels =
      AndOnCuda(OnCpu("Gated", reference::Gated, FusedGated<float>, FusedGated<cpu::Bf16>), InCuda<cuda::Gated>());
  return kernels.For(gate_up)(gate_up, activation);
}

at::Tensor Add(const at::Tensor& a, const at::Tensor& b) {
  static const auto kernels = AndOnCuda(KernelTable("Add", PlainAdd, {}), InCuda<cuda::Add>());
  return kernels.For(a)(a, b);
}

}  // namespace millrace::engine::ops
