// Which implementation runs, and the step from tensors to rows of memory.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>

#include "millrace/engine/ops/cpu/kernels.h"

namespace millrace::engine::ops {

/// Fused ops exist for these inputs.
inline bool HasFused(const at::Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// Calls `work` with a value of the kernel's element type for the tensor's.
template <class Work>
void DispatchType(const at::Tensor& x, Work&& work) {
  if (x.scalar_type() == at::kBFloat16) {
    work(cpu::Bf16{});
  } else {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "fused CPU ops take float32 and bfloat16");
    work(float{});
  }
}

/// The elements of a contiguous tensor; nullptr for an undefined one.
template <class T>
T* Data(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  TORCH_INTERNAL_ASSERT(x.is_contiguous() && x.element_size() == sizeof(T));
  return static_cast<T*>(x.data_ptr());
}

/// Runs `work(Rows)` over [0, rows), split among threads so that each has at least about 16 Ki elements.
template <class Work>
void ParallelRows(std::int64_t rows, std::int64_t columns, Work&& work) {
  const std::int64_t grain = std::max<std::int64_t>(1, 16'384 / std::max<std::int64_t>(1, columns));
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) { work(cpu::Rows{begin, end}); });
}

}  // namespace millrace::engine::ops
