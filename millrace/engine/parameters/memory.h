// Tensors whose memory is freed and allocated again while the tensor object stays.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/layout/block_pool.h"

namespace millrace::engine {

/// A pool of blocks of host memory for such tensors. malloc would fill the holes that freed tensors leave with small
/// tensors. Then the next large tensor would find no room. The allocator of a GPU keeps such blocks by itself.
using MemoryPool = BlockPool<at::DataPtr>;

/// Returns a tensor [elements] without memory. Its views share its storage, so they stay valid when the memory is
/// replaced. Use the tensor and its views only while there is memory.
at::Tensor TensorWithoutMemory(std::int64_t elements, at::ScalarType dtype, at::Device device);
/// Gives a tensor that TensorWithoutMemory() returned new memory. The content is undefined.
/// REQUIRES: it has none. Throws what the allocator throws.
void AllocateMemory(const at::Tensor& tensor);
/// Frees the memory of such a tensor. Does nothing if there is none. On a GPU, earlier work of the current stream can
/// still use the memory.
void FreeMemory(const at::Tensor& tensor);
/// Returns the bytes of the tensor's memory, which views share; 0 if it has none.
std::int64_t MemoryBytes(const at::Tensor& tensor);

/// As AllocateMemory(), with a block of the pool. Returns the block's bytes, for GiveMemory().
std::int64_t TakeMemory(const at::Tensor& tensor, MemoryPool& pool);
/// Returns the memory from TakeMemory() to the pool. `block_bytes` is what TakeMemory() returned. Does nothing if the
/// tensor has no memory.
void GiveMemory(const at::Tensor& tensor, std::int64_t block_bytes, MemoryPool& pool);

}  // namespace millrace::engine
