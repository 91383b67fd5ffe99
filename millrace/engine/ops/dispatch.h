// The dispatch from tensors to kernels: the implementations of an op by device and element type, and rows of memory.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/engine/device/built_with_cuda.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/trace/recorder.h"

namespace millrace::engine::ops {

/// An implementation of an op. A call is a span of a trace.
template <class Function>
class TracedKernel {
 public:
  TracedKernel(const char* op, Function& run) : op_(op), run_(run) {}
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    const trace::Span span(op_, trace::Category::kKernel);
    return run_(std::forward<Arguments>(arguments)...);
  }

 private:
  const char* const op_;
  Function& run_;
};

/// The implementations of an op, by device and element type. Each op has one constant table. `Function` is the type of
/// a function: `at::Tensor(const at::Tensor&)`. ops_test holds each kernel against the reference, gradients too.
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

  /// Returns this table with further kernels.
  KernelTable With(const std::vector<Kernel>& more) && {
    kernels_.insert(kernels_.end(), more.begin(), more.end());
    return std::move(*this);
  }

  /// Returns the implementation for tensors such as `x`; in a KernelScope of plain kernels, the reference. Throws
  /// c10::Error if there is none.
  TracedKernel<Function> For(const at::Tensor& x) const { return {op_, Choose(x)}; }

 private:
  Function& Choose(const at::Tensor& x) const {
    if (UsesPlainKernels()) {
      TORCH_CHECK(reference_ != nullptr, op_, " has no plain implementation");
      return *reference_;
    }
    const auto fits = [&](const Kernel& kernel) {
      return kernel.device == x.device().type() && kernel.type == x.scalar_type();
    };
    const auto found = std::ranges::find_if(kernels_, fits);
    if (found != kernels_.end()) return *found->run;
    TORCH_CHECK(reference_ != nullptr, op_, " is not implemented for ", x.scalar_type(), " on ", x.device());
    return *reference_;
  }

  const char* op_;
  Function* reference_;
  std::vector<Kernel> kernels_;
};

/// Returns the table of an op with fused kernels for float32 and bfloat16 on a CPU.
template <class Function>
KernelTable<Function> OnCpu(const char* op, Function* reference, Function* float32, Function* bfloat16) {
  return {op, reference, {{at::kCPU, at::kFloat, float32}, {at::kCPU, at::kBFloat16, bfloat16}}};
}

/// The op of ops/cuda that a table names, if this program is built for GPUs; otherwise null, and nothing links it.
template <auto* kOp>
constexpr auto* InCuda() {
  if constexpr (kBuiltWithCuda) {
    return kOp;
  } else {
    return static_cast<decltype(kOp)>(nullptr);
  }
}

/// Returns the same table with the kernel `cuda`, of all of ops/cuda's types, for tensors on a GPU. Null: without.
template <class Function>
KernelTable<Function> AndOnCuda(KernelTable<Function> table, Function* cuda) {
  if (cuda == nullptr) return table;
  return std::move(table).With(
      {{at::kCUDA, at::kFloat, cuda}, {at::kCUDA, at::kBFloat16, cuda}, {at::kCUDA, at::kHalf, cuda}});
}

/// Returns whether the kernels of ops/cpu take this tensor.
inline bool HasFused(const at::Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// The tensors' type of the kernels' element type: float or cpu::Bf16.
template <class T>
constexpr at::ScalarType kScalarType = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;

/// Calls `work` with a value of the kernels' element type for the tensor's type: float or cpu::Bf16.
template <class Work>
void DispatchType(const at::Tensor& x, Work&& work) {
  if (x.scalar_type() == at::kBFloat16) {
    work(cpu::Bf16{});
  } else {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "fused CPU ops take float32 and bfloat16");
    work(float{});
  }
}

/// Returns the elements of a contiguous tensor, or nullptr for an undefined one.
template <class T>
T* Data(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  TORCH_INTERNAL_ASSERT(x.is_contiguous() && x.element_size() == sizeof(T));
  return static_cast<T*>(x.data_ptr());
}

/// Returns the kernel of a dropout site.
inline cpu::DropoutRow KernelOf(const DropoutSite& site) {
  return {.key = site.key(),
          .threshold = static_cast<std::uint32_t>(site.probability * 0x1p32),
          .scale = static_cast<float>(1 / (1 - site.probability))};
}

/// Runs `work(Rows)` over [0, rows), split among threads. Each thread gets at least about kGrainElements elements.
template <class Work>
void ParallelRows(std::int64_t rows, std::int64_t columns, Work&& work) {
  constexpr std::int64_t kGrainElements = 16'384;  // some microseconds of work, more than a thread's start costs
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, columns));
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) { work(cpu::Rows{begin, end}); });
}

}  // namespace millrace::engine::ops
