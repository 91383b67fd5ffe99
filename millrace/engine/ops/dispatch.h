// From tensors to rows of memory, and to the element type of kernels.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/dropout.h"

namespace millrace::engine::ops {

/// Returns whether the kernels of ops/cpu take this tensor.
inline bool HasFused(const at::Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

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
