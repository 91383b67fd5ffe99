// Copies between the host and a device that block neither of them.
#pragma once

#include <ATen/ATen.h>

namespace millrace::engine {

/// Returns an empty tensor on the CPU, which copies from and to `device` fast: pinned if that is a GPU.
at::Tensor EmptyOnHost(at::IntArrayRef shape, at::ScalarType type, at::Device device);

/// Returns a tensor of the CPU on `device`; the same tensor if that is the CPU. A GPU copies it on its current stream,
/// and the caller does not wait. The content of `tensor` is taken before the function returns.
at::Tensor ToDevice(const at::Tensor& tensor, at::Device device);

}  // namespace millrace::engine
