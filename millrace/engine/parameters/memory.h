// Tensors whose memory comes and goes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/layout/block_pool.h"

namespace millrace::engine {

/// Blocks of the host's memory for tensors that come and go. malloc would fill the holes that they leave with small
/// tensors, and find no room for the next large one. A GPU's allocator keeps blocks by itself.
using MemoryPool = BlockPool<at::DataPtr>;

/// Returns a tensor [elements] that has no memory yet. Views of it stay valid when its memory is replaced,
/// because they share its storage. They must be used only while it has memory.
at::Tensor TensorWithoutMemory(std::int64_t elements, at::ScalarType dtype, at::Device device);
/// Gives a tensor that TensorWithoutMemory() returned new memory. The content is undefined.
/// REQUIRES: it has none. Throws what the allocator throws.
void AllocateMemory(const at::Tensor& tensor);
/// Frees the memory of such a tensor. Does nothing if it has none. On a GPU, work of the current stream that was
/// started before still finds it.
void FreeMemory(const at::Tensor& tensor);
/// Returns the bytes of the tensor's memory, which views share; 0 if it has none.
std::int64_t MemoryBytes(const at::Tensor& tensor);

/// As AllocateMemory(), with a block of the pool. Returns the block's bytes, for GiveMemory().
std::int64_t TakeMemory(const at::Tensor& tensor, MemoryPool& pool);
/// Gives the memory that TakeMemory() took back to the pool. `block_bytes`: what it returned. Does nothing if the
/// tensor has none.
void GiveMemory(const at::Tensor& tensor, std::int64_t block_bytes, MemoryPool& pool);

}  // namespace millrace::engine
