// Tensors whose memory comes and goes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine {

/// Returns a tensor [elements] on the CPU that has no memory yet. Views of it stay valid when its memory is replaced,
/// because they share its storage. They must be used only while it has memory.
at::Tensor TensorWithoutMemory(std::int64_t elements, at::ScalarType dtype);
/// Gives a tensor that TensorWithoutMemory() returned new memory. The content is undefined.
/// REQUIRES: it has none. Throws what the allocator throws.
void AllocateMemory(const at::Tensor& tensor);
/// Frees the memory of such a tensor. Does nothing if it has none.
void FreeMemory(const at::Tensor& tensor);
/// Returns the bytes of the tensor's memory, which views share; 0 if it has none.
std::int64_t MemoryBytes(const at::Tensor& tensor);

}  // namespace millrace::engine
