#include "millrace/engine/parameters/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

namespace millrace::engine {
namespace {

c10::StorageImpl& StorageOf(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

at::Tensor TensorWithoutMemory(std::int64_t elements, at::ScalarType dtype, at::Device device) {
  const at::Tensor tensor = at::empty({elements}, at::TensorOptions().dtype(dtype).device(device));
  FreeMemory(tensor);
  return tensor;
}

void AllocateMemory(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(MemoryBytes(tensor) == 0, "the tensor has memory");
  const c10::DeviceGuard on_device(tensor.device());  // the allocator of GPUs takes the current one
  StorageOf(tensor).set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(tensor.storage().nbytes()));
}

std::int64_t TakeMemory(const at::Tensor& tensor, MemoryPool& pool) {
  TORCH_INTERNAL_ASSERT(MemoryBytes(tensor) == 0, "the tensor has memory");
  if (tensor.storage().nbytes() == 0) return 0;
  const auto allocate = [&](std::int64_t bytes) {
    return c10::GetAllocator(tensor.device().type())->allocate(static_cast<std::size_t>(bytes));
  };
  MemoryPool::Block block = pool.Take(static_cast<std::int64_t>(tensor.storage().nbytes()), allocate);
  StorageOf(tensor).set_data_ptr_noswap(std::move(block.memory));
  return block.bytes;
}

void GiveMemory(const at::Tensor& tensor, std::int64_t block_bytes, MemoryPool& pool) {
  if (MemoryBytes(tensor) == 0) return;
  pool.Give({block_bytes, StorageOf(tensor).set_data_ptr(at::DataPtr(nullptr, tensor.device()))});
}

void FreeMemory(const at::Tensor& tensor) {
  // The storage keeps its size, because ATen refuses views beyond it.
  StorageOf(tensor).set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
}

std::int64_t MemoryBytes(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.storage().data() == nullptr) return 0;
  return static_cast<std::int64_t>(tensor.storage().nbytes());
}

}  // namespace millrace::engine
