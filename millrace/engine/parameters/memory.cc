#include "millrace/engine/parameters/memory.h"

#include <c10/core/CPUAllocator.h>

namespace millrace::engine {
namespace {

c10::StorageImpl& StorageOf(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

at::Tensor TensorWithoutMemory(std::int64_t elements, at::ScalarType dtype) {
  const at::Tensor tensor = at::empty({elements}, dtype);
  FreeMemory(tensor);
  return tensor;
}

void AllocateMemory(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(MemoryBytes(tensor) == 0, "the tensor has memory");
  StorageOf(tensor).set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(tensor.storage().nbytes()));
}

void FreeMemory(const at::Tensor& tensor) {
  // The storage keeps its size, because ATen refuses views beyond it.
  StorageOf(tensor).set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
}

std::int64_t MemoryBytes(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.storage().data() == nullptr) return 0;
  return static_cast<std::int64_t>(tensor.storage().nbytes());
}

}  // namespace millrace::engine
