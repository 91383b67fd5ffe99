// Kernels that compute with the elements of quantized matrices, over raw memory of the GPU.
#pragma once

#include <cstdint>
#include <variant>

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

/// As QuantizedMatrix::Int8. Pointers are to memory of the GPU.
struct Int8Codes {
  const std::int8_t* codes;
  const float* scales;  ///< by row; an element is code · scale (QuantizedMatrix::row_factors)
};

/// As QuantizedMatrix::Fp8. Pointers are to memory of the GPU, codes to E4M3.
struct Fp8Codes {
  const std::uint8_t* codes;
  const float* scales;  ///< by row; an element is the code's number · scale
};

using Codes = std::variant<Nf4Codes, Int8Codes, Fp8Codes>;

/// Writes the elements of a box as a dense matrix of `type`, rounded once.
void Dequantize(const Codes& codes, const CodedBox& box, Element type, void* out, Stream stream);

/// out [rows, box.rows] = x [rows, box.columns] · box^T + bias [box.rows], which may be null. The codes may be read
/// before kernels that Launch() started have ended (kernels/device.cuh): they must not write them.
struct CodedProductArgs {
  const void *x = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0, x_stride = 0, out_stride = 0;  ///< strides in elements; columns are dense
  CodedBox box;
};

inline constexpr std::int64_t kMaxCodedRows = 4;
/// Returns whether MultiplyCodedRows() takes these: at most kMaxCodedRows rows, vectors of 16 bytes fit, and blocks of
/// scales end with rows.
bool FitsCodedRows(Element element, const Codes& codes, const CodedProductArgs& args);
/// Makes a product of few rows, in float32. Each code is read once.
void MultiplyCodedRows(Element element, const Codes& codes, const CodedProductArgs& args, Stream stream);

inline constexpr std::int64_t kTileRows = 64;
/// Returns whether MultiplyCodedTiles() takes these: bfloat16 or float16, any number of rows, and the rest as above.
bool FitsCodedTiles(Element element, const Codes& codes, const CodedProductArgs& args);
/// Returns the floats of memory that MultiplyCodedTiles() needs.
std::int64_t CodedTilesScratch(const CodedProductArgs& args);
/// Makes a product by tensor cores. Numbers of NF4 are rounded to the type of x, those of 8 bits are exact there; sums
/// are float32. Codes are read once for kTileRows rows.
void MultiplyCodedTiles(Element element, const Codes& codes, const CodedProductArgs& args, float* scratch,
                        Stream stream);

}  // namespace millrace::engine::cuda
