// The kernels that make 8-bit operands of products, over raw memory of the GPU. As those of kernels/kernels.h.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/kernels.h"
#include "millrace/engine/quantized/fp8_numbers.h"

namespace millrace::engine::cuda {

/// *largest = the largest absolute value of x [count] in bfloat16; NaN counts as the largest of all.
/// REQUIRES: x begins at a multiple of 16 bytes, and count is a multiple of 8.
void FindLargest(const void* x, std::int64_t count, float* largest, Stream stream);

/// A matrix in bfloat16, and where its codes go. Casts read it once.
/// REQUIRES: rows and columns are multiples of 16; all memory begins at a multiple of 16 bytes.
struct Fp8Operand {
  const void* x = nullptr;             ///< [rows, columns]
  std::uint8_t* codes = nullptr;       ///< [rows, columns]; may be null
  std::uint8_t* transposed = nullptr;  ///< [columns, rows]; may be null
  std::int64_t rows = 0, columns = 0;
};

/// One scale for all of a matrix: Fp8ScaleOf(format, *largest).
struct Fp8TensorScale {
  const float* largest = nullptr;
  float* decode = nullptr;  ///< is set: cuBLAS multiplies products by it
  /// If it is not null, `largest` is a guess. *seen becomes the largest absolute value of the matrix, if that is larger
  /// (NaN counts as the largest of all). What is beyond the guess becomes the largest code, and what is infinite NaN.
  float* seen = nullptr;
};
void CastToFp8(Fp8Format format, const Fp8Operand& of, const Fp8TensorScale& scale, Stream stream);

/// Elements of a line of a matrix, or rows and columns of a square, that share a scale. Blocks begin at multiples of
/// it.
inline constexpr std::int64_t kFp8Block = 128;
/// Casts to E4M3 with a scale for each kFp8Block elements that are summed in a product: of a row for `codes`, of a
/// column for `transposed`. Where there are codes, there are decoding factors, as cuBLAS reads them: of block b of line
/// i at [b · lines + i].
struct Fp8LineScales {
  float* decode = nullptr;             ///< [⌈columns / kFp8Block⌉, rows]
  float* decode_transposed = nullptr;  ///< [⌈rows / kFp8Block⌉, columns]
};
void CastLinesToFp8(const Fp8Operand& of, const Fp8LineScales& scales, Stream stream);

/// Returns the floats from the factors of one row of squares to those of the next. A row has `elements` elements.
constexpr std::int64_t Fp8SquareStride(std::int64_t elements) {
  constexpr std::int64_t kMultiple = 4;  // cuBLAS's
  return (elements + kMultiple * kFp8Block - 1) / (kMultiple * kFp8Block) * kMultiple;
}
/// Casts to E4M3 with a scale for each square of kFp8Block rows and columns.
struct Fp8SquareScales {
  float* decode = nullptr;             ///< [⌈rows / kFp8Block⌉, Fp8SquareStride(columns)]
  float* decode_transposed = nullptr;  ///< [⌈columns / kFp8Block⌉, Fp8SquareStride(rows)]
};
void CastSquaresToFp8(const Fp8Operand& of, const Fp8SquareScales& scales, Stream stream);

}  // namespace millrace::engine::cuda
