// Kernels that compute with the elements of quantized matrices, over raw memory of the GPU.
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

/// Write the elements of a box as a dense matrix of `type`, rounded once.
void Dequantize(const Nf4Codes& codes, const CodedBox& box, Element type, void* out, Stream stream);
void Dequantize(const Int8Codes& codes, const CodedBox& box, Element type, void* out, Stream stream);
void Dequantize(const Fp8Codes& codes, const CodedBox& box, Element type, void* out, Stream stream);

/// out [rows, box.rows] = x [rows, box.columns] · box^T + bias [box.rows], which may be null. Each code is read once,
/// maybe before kernels that Launch() started have ended (kernels/device.cuh): they must not write codes.
struct CodedProductArgs {
  const void *x = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0, x_stride = 0, out_stride = 0;  ///< strides in elements; columns are dense
  CodedBox box;
};

/// Make a product of at most kMostCodedRows rows, in float32.
/// REQUIRES: FitsCodedRows(): vectors of 16 bytes fit, and blocks of scales end with rows.
inline constexpr std::int64_t kMostCodedRows = 4;
bool FitsCodedRows(Element element, const Nf4Codes& codes, const CodedProductArgs& args);
bool FitsCodedRows(Element element, const Int8Codes& codes, const CodedProductArgs& args);
bool FitsCodedRows(Element element, const Fp8Codes& codes, const CodedProductArgs& args);
void MultiplyCodedRows(Element element, const Nf4Codes& codes, const CodedProductArgs& args, Stream stream);
void MultiplyCodedRows(Element element, const Int8Codes& codes, const CodedProductArgs& args, Stream stream);
void MultiplyCodedRows(Element element, const Fp8Codes& codes, const CodedProductArgs& args, Stream stream);

/// Make a product of more rows by tensor cores. NF4's numbers are rounded to the type of x, int8's are exact there;
/// sums are float32. Codes are read once for kTileRows rows. `scratch`: CodedTilesScratch() floats. REQUIRES:
/// FitsCodedTiles(): as above, and bfloat16 or float16.
inline constexpr std::int64_t kTileRows = 64;
bool FitsCodedTiles(Element element, const Nf4Codes& codes, const CodedProductArgs& args);
bool FitsCodedTiles(Element element, const Int8Codes& codes, const CodedProductArgs& args);
bool FitsCodedTiles(Element element, const Fp8Codes& codes, const CodedProductArgs& args);
std::int64_t CodedTilesScratch(const CodedProductArgs& args);
void MultiplyCodedTiles(Element element, const Nf4Codes& codes, const CodedProductArgs& args, float* scratch,
                        Stream stream);
void MultiplyCodedTiles(Element element, const Int8Codes& codes, const CodedProductArgs& args, float* scratch,
                        Stream stream);
void MultiplyCodedTiles(Element element, const Fp8Codes& codes, const CodedProductArgs& args, float* scratch,
                        Stream stream);

}  // namespace millrace::engine::cuda
