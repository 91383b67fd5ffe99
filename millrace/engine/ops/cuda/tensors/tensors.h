// Turns tensors on a GPU into the arguments of kernels.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "millrace/engine/ops/cuda/kernels/kernels.h"
#include "millrace/engine/ops/cuda/tensors/element.h"

namespace millrace::engine::ops::cuda {

namespace kernels = millrace::engine::cuda;

/// Returns the stream that operations on x's device run on.
inline kernels::Stream StreamOf(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()); }

/// Returns the memory of a dense tensor, or null for an undefined one.
template <class T = void>
T* MemoryOf(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  TORCH_INTERNAL_ASSERT(x.is_contiguous() && x.is_cuda());
  return static_cast<T*>(x.data_ptr());
}

/// Returns x, or a dense copy without a graph.
inline at::Tensor Dense(const at::Tensor& x) { return !x.defined() || x.is_contiguous() ? x : x.detach().contiguous(); }

/// Returns a new tensor on x's device.
inline at::Tensor NewLike(const at::Tensor& x, at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, x.options().dtype(type).requires_grad(false));
}

/// Returns the tensor on the device. If it comes from the CPU, the copy does not wait for the GPU.
inline at::Tensor OnDevice(const at::Tensor& x, at::Device device) {
  if (x.device() == device) return x;
  return x.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace millrace::engine::ops::cuda
