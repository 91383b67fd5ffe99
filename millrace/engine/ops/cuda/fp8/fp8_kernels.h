// The kernels that make 8-bit operands of products, over raw memory of the GPU. As those of kernels/kernels.h.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/fp8/rounding.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

/// What the GPU knows of the scale of a tensor.
struct Fp8ScaleMemory {
  float decode;   ///< cuBLAS multiplies products by it
  float largest;  ///< of the absolute values; NaN counts as the largest of all
};

/// scale->largest = the largest absolute value of x [count] in bfloat16.
/// REQUIRES: x begins at a multiple of 16 bytes, and count is a multiple of 8.
void FindLargest(const void* x, std::int64_t count, Fp8ScaleMemory* scale, Stream stream);

/// Casts x [rows, columns] in bfloat16 to `format`, scaled by scale->largest, and sets scale->decode. Reads x once.
/// REQUIRES: rows and columns are multiples of 16; all memory begins at a multiple of 16 bytes.
struct Fp8CastArgs {
  const void* x = nullptr;
  std::uint8_t* codes = nullptr;       ///< [rows, columns]; may be null
  std::uint8_t* transposed = nullptr;  ///< [columns, rows]; may be null
  Fp8ScaleMemory* scale = nullptr;
  std::int64_t rows = 0, columns = 0;
};
void CastToFp8(Fp8Format format, const Fp8CastArgs& args, Stream stream);

}  // namespace millrace::engine::cuda
