// Kernels that compute the elements of quantized matrices, over raw memory of the GPU.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

/// Some elements of a matrix of codes: rows of `columns` consecutive ones. Element numbers count from the matrix's
/// first one, row by row.
struct CodedBox {
  std::int64_t first = 0;  ///< element
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0;  ///< elements from one row of the matrix to the next
};

/// As QuantizedMatrix::Nf4. Pointers are to memory of the GPU.
struct Nf4Codes {
  const std::uint8_t* codes;
  const float* map;  ///< 16
  int block;
  const std::uint8_t* scales;  ///< with `nested`, a byte for each block; else null
  const float* plain_scales;   ///< without, a number for each block; else null
  const float* scale_map;      ///< 256
  const float* scale_scales;
  int scale_block;
  float scale_offset;
};

/// Write the elements of a box as a dense matrix of `type`, rounded once.
void DequantizeNf4(const Nf4Codes& codes, const CodedBox& box, Element type, void* out, Stream stream);
/// `scales`: one for each row of the matrix.
void DequantizeInt8(const std::int8_t* codes, const float* scales, const CodedBox& box, Element type, void* out,
                    Stream stream);

}  // namespace millrace::engine::cuda
