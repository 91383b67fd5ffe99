#include "millrace/engine/device/host_memory.h"

namespace millrace::engine {

at::Tensor EmptyOnHost(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(!device.is_cpu()));
}

at::Tensor ToDevice(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  const at::Tensor pinned = EmptyOnHost(tensor.sizes(), tensor.scalar_type(), device);
  pinned.copy_(tensor);
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace millrace::engine
