// Products of rows with a weight of codes, for generation. They read the codes where they are, and each code becomes a
// number in a register. A row of the result has the same bits whatever rows are beside it, as of RowProduct.
#pragma once

#include <cstdint>

namespace millrace::engine::cpu {

/// Columns of a weight in 8-bit integers: rows of a quantized matrix.
struct Int8Columns {
  const std::int8_t* codes;  ///< of the first column
  std::int64_t stride;       ///< codes from a column to the next
  const float* scales;       ///< [columns]; an element is code · scale
};

/// The same in E4M3 (engine/quantized/fp8_numbers.h): an element is the code's number · scale.
struct Fp8Columns {
  const std::uint8_t* codes;
  std::int64_t stride;
  const float* scales;
};

/// Columns of a weight in codes of 4 bits, two in a byte, the first one in the high half.
struct Nf4Columns {
  const std::uint8_t* codes;  ///< of the first column
  std::int64_t stride;        ///< bytes from a column to the next
  const float* map;           ///< [16]: what a code stands for, without the scale
  const float* scales;        ///< of the first column; an element is map[code] · scale
  std::int64_t scales_stride;
  int block_bits;  ///< 2^block_bits elements share a scale; at least 4
};

/// Numbers that an instruction multiplies. The columns of NF4 have a multiple of this number.
constexpr std::int64_t kCodeLanes = 16;
/// Columns that a call takes.
constexpr std::int64_t kCodedColumns = 32;

/// Writes a row of x as products with NF4 read it: the elements that stand in a register in the order of their codes'
/// bits. REQUIRES: `count` is a multiple of kCodeLanes.
void OrderForNf4(const float* x, std::int64_t count, float* out);

/// out = x · columns + bias: [rows, columns] from x [rows, inner], dense. Sums are float32. With AVX-512, each six rows
/// make numbers of the codes again, which costs less than to keep the numbers in a core's second cache. On other
/// processors, the numbers of a few columns are made once for all rows. One row reads its columns far apart, as
/// RowProduct does. Columns is Int8Columns,
/// Fp8Columns or Nf4Columns.
template <class Columns>
struct CodedProduct {
  const float* x;  ///< for Nf4Columns: as OrderForNf4() writes it
  Columns weight;
  const float* bias;  ///< [columns] or null
  float* out;
  std::int64_t out_stride;
  std::int64_t rows, columns, inner;  ///< at most kCodedColumns columns

  /// One thread.
  void Run() const;
};

}  // namespace millrace::engine::cpu
