// The implementations of an op, by device and element type.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace millrace::engine::ops {

/// An op has one table, which is constant. `Function` is the type of a function: `at::Tensor(const at::Tensor&)`.
/// ops_test holds each kernel against the reference, gradients too.
template <class Function>
class KernelTable {
 public:
  struct Kernel {
    at::DeviceType device;
    at::ScalarType type;
    Function* run;
  };
  /// `reference` computes where no kernel does. It may be null if it does not exist.
  KernelTable(const char* op, Function* reference, std::vector<Kernel> kernels)
      : op_(op), reference_(reference), kernels_(std::move(kernels)) {}

  /// Returns the implementation for tensors such as `x`. Throws c10::Error if there is none.
  Function& For(const at::Tensor& x) const {
    const auto fits = [&](const Kernel& kernel) {
      return kernel.device == x.device().type() && kernel.type == x.scalar_type();
    };
    const auto found = std::ranges::find_if(kernels_, fits);
    if (found != kernels_.end()) return *found->run;
    TORCH_CHECK(reference_ != nullptr, op_, " is not implemented for ", x.scalar_type(), " on ", x.device());
    return *reference_;
  }

 private:
  const char* op_;
  Function* reference_;
  std::vector<Kernel> kernels_;
};

/// Returns the table of an op with fused kernels for float32 and bfloat16 on a CPU.
template <class Function>
KernelTable<Function> OnCpu(const char* op, Function* reference, Function* float32, Function* bfloat16) {
  return {op, reference, {{at::kCPU, at::kFloat, float32}, {at::kCPU, at::kBFloat16, bfloat16}}};
}

}  // namespace millrace::engine::ops
