// The tiles of RowProduct and CodedProduct, for files that compile them for different processors. All names have
// internal linkage, and nothing here calls the standard library: so no function of one file takes the place of the
// other's.
#pragma once

#include <cstdint>
#include <cstring>

#include "millrace/engine/ops/cpu/row_product.h"

namespace millrace::engine::cpu {
namespace {  // NOLINT(google-build-namespaces): see above

using SumLanes = float __attribute__((vector_size(64)));
using HalfWords = std::uint16_t __attribute__((vector_size(32)));
using FullWords = std::uint32_t __attribute__((vector_size(64)));
using HalfLanes = float __attribute__((vector_size(32)));
using QuarterWords = std::uint16_t __attribute__((vector_size(16)));
using HalfFullWords = std::uint32_t __attribute__((vector_size(32)));

/// Bytes of a row that are multiplied before the next part: those of six rows stay in a core's first cache. The sum of
/// a row is that of its parts.
constexpr std::int64_t kProductBytes = 4096;

/// sums[i] += the sum of the lanes of x[i], for four registers. All have the same order of additions.
MR_INLINE void AddLaneSums(const SumLanes* x, float* sums) {
#define MR_LOW(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define MR_HIGH(a, b) __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
  const SumLanes a = MR_LOW(x[0], x[1]) + MR_HIGH(x[0], x[1]);
  const SumLanes b = MR_LOW(x[2], x[3]) + MR_HIGH(x[2], x[3]);
#undef MR_LOW
#undef MR_HIGH
  SumLanes four = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                  __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  four += __builtin_shufflevector(four, four, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  four += __builtin_shufflevector(four, four, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  for (int i = 0; i < 4; ++i) sums[i] += four[4 * i];
}

/// The same with the same order of additions, for processors whose registers hold half of the lanes.
MR_INLINE void AddHalvedSums(const SumLanes* x, float* sums) {
  for (int i = 0; i < 4; i += 2) {
    HalfLanes a[2], b[2];
    std::memcpy(a, x + i, sizeof a);
    std::memcpy(b, x + i + 1, sizeof b);
    a[0] += a[1];
    b[0] += b[1];
    HalfLanes pair = __builtin_shufflevector(a[0], b[0], 0, 1, 2, 3, 8, 9, 10, 11) +
                     __builtin_shufflevector(a[0], b[0], 4, 5, 6, 7, 12, 13, 14, 15);
    pair += __builtin_shufflevector(pair, pair, 2, 3, 0, 1, 6, 7, 4, 5);
    pair += __builtin_shufflevector(pair, pair, 1, 0, 3, 2, 5, 4, 7, 6);
    sums[i] += pair[0];
    sums[i + 1] += pair[4];
  }
}

/// Loads elements as float32, and multiplies these.
struct WidenedElements {
  using Register = SumLanes;
  static constexpr std::int64_t kCount = 16;
  MR_INLINE static void Load(const float* from, Register& to) { std::memcpy(&to, from, sizeof to); }
  MR_INLINE static void Load(const Bf16* from, Register& to) {
    HalfWords halves;
    std::memcpy(&halves, from, sizeof halves);
    const FullWords words = __builtin_convertvector(halves, FullWords) << 16;
    std::memcpy(&to, &words, sizeof to);
  }
  MR_INLINE static void MultiplyAdd(SumLanes& sum, const Register& a, const Register& b) { sum += a * b; }
  MR_INLINE static void LoadHalf(const float* from, HalfLanes& to) { std::memcpy(&to, from, sizeof to); }
  MR_INLINE static void LoadHalf(const Bf16* from, HalfLanes& to) {
    QuarterWords quarter;
    std::memcpy(&quarter, from, sizeof quarter);
    const HalfFullWords words = __builtin_convertvector(quarter, HalfFullWords) << 16;
    std::memcpy(&to, &words, sizeof to);
  }
};

template <class Elements, class T>
MR_INLINE void LoadSome(const T* from, std::int64_t count, typename Elements::Register& to) {
  T all[Elements::kCount] = {};
  std::memcpy(all, from, static_cast<std::size_t>(count) * sizeof(T));
  Elements::Load(all, to);
}

/// Columns of a weight in memory: its rows, `stride` elements apart. kWholeRegisters: columns end with a register.
/// kAlwaysWritten: for more than four rows, halved tiles do not read the columns themselves (WrittenProduct()).
template <class Elements, class T>
struct DenseColumns {
  static constexpr bool kWholeRegisters = false;
  static constexpr bool kAlwaysWritten = false;
  /// The least rows with which these columns are written down too: bfloat16 is then widened once, and columns whose
  /// distance is a power of two do not fall on the same lines of the cache.
  static constexpr std::int64_t kWritingRows = sizeof(T) == sizeof(float) ? 32 : 8;
  const T* first;
  std::int64_t stride;

  MR_INLINE void Load(std::int64_t column, std::int64_t k, typename Elements::Register& to) const {
    Elements::Load(first + column * stride + k, to);
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(first + column * stride + k, 0, 3);
  }
  MR_INLINE void PrefetchAhead(std::int64_t column, std::int64_t k, std::int64_t bytes) const {
    Prefetch(column, k + bytes / static_cast<std::int64_t>(sizeof(T)));
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, std::int64_t count, typename Elements::Register& to) const {
    LoadSome<Elements>(first + column * stride + k, count, to);
  }
  /// Half a register: see HalvedTile().
  MR_INLINE void LoadHalf(std::int64_t column, std::int64_t k, HalfLanes& to) const {
    Elements::LoadHalf(first + column * stride + k, to);
  }
  /// The columns from `column` on, each `distance` columns after the last, from element k on.
  MR_INLINE DenseColumns At(std::int64_t column, std::int64_t distance, std::int64_t k) const {
    return {first + column * stride + k, distance * stride};
  }
  static constexpr std::int64_t kBatch = Elements::kCount;
  MR_INLINE void LoadBatch(std::int64_t column, std::int64_t k, HalfLanes* to) const {
    LoadHalf(column, k, to[0]);
    LoadHalf(column, k + 8, to[1]);
  }
  /// See WrittenProduct().
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
    for (std::int64_t k = 0; k < count; k += kLine) Prefetch(column, k);
  }
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    const T* const from = first + column * stride;
    std::int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
      HalfLanes numbers;
      Elements::LoadHalf(from + k, numbers);
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
    for (; k < count; ++k) to[k] = ToFloat(from[k]);
  }
};

/// Loads at most a register of a column.
template <class Elements, class Columns>
MR_INLINE void LoadColumn(const Columns& weight, std::int64_t column, std::int64_t k, std::int64_t count,
                          typename Elements::Register& to) {
  if constexpr (Columns::kWholeRegisters) {
    weight.Load(column, k, to);
  } else {
    weight.Load(column, k, count, to);
  }
}

/// acc[c] += products of at most a register of elements with column[first + c], for kColumns columns.
template <class Elements, int kColumns, class X, class Columns>
MR_INLINE void AddLastElements(const X* x, const Columns& weight, std::int64_t first, std::int64_t k,
                               std::int64_t count, SumLanes* acc) {
  SumLanes row, w;
  LoadSome<Elements>(x, count, row);
  for (int c = 0; c < kColumns; ++c) {
    LoadColumn<Elements>(weight, first + c, k, count, w);
    Elements::MultiplyAdd(acc[c], row, w);
  }
}

/// The most rows with which memory is the limit.
constexpr int kPrefetchingRows = 4;

/// sums[r][c] += x[r] · column[first + c] over `inner` elements, for kRows rows and kColumns columns, a multiple of 4.
/// Rows of x are `stride` elements apart.
template <class Elements, int kRows, int kColumns, class T, class Columns>
MR_INLINE void ProductTile(const T* x, std::int64_t stride, const Columns& weight, std::int64_t first,
                           std::int64_t inner, float* sums) {
  using Register = typename Elements::Register;
  SumLanes acc[kRows][kColumns] = {};
  std::int64_t k = 0;
  for (; k + Elements::kCount <= inner; k += Elements::kCount) {
    Register w[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      // The next tile's columns follow in memory, or nothing reads these lines: that is no error.
      if constexpr (kRows <= kPrefetchingRows) weight.Prefetch(first + c + kColumns, k);
      weight.Load(first + c, k, w[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Register row;
      Elements::Load(x + r * stride + k, row);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) Elements::MultiplyAdd(acc[r][c], row, w[c]);
    }
  }
  if (!Columns::kWholeRegisters && k < inner) {
    Register w[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) LoadColumn<Elements>(weight, first + c, k, inner - k, w[c]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Register row;
      LoadSome<Elements>(x + r * stride + k, inner - k, row);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) Elements::MultiplyAdd(acc[r][c], row, w[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; c += 4) AddLaneSums(&acc[r][c], sums + r * kProductColumns + c);
  }
}

/// As ProductTile for four columns, with the same bits, for processors whose registers hold half of the lanes. One half
/// of the lanes is summed after the other, so that all sums stay in registers.
template <class Elements, int kRows, class X, class Columns>
MR_INLINE void HalvedTile(const X* x, std::int64_t stride, const Columns& weight, std::int64_t first,
                          std::int64_t inner, float* sums) {
  constexpr int kColumns = 4, kHalf = 8;
  SumLanes acc[kRows][kColumns];
  const std::int64_t whole = inner - inner % Elements::kCount;
  for (std::int64_t offset = 0; offset < Elements::kCount; offset += kHalf) {
    HalfLanes part[kRows][kColumns] = {};
    for (std::int64_t k = offset; k < whole; k += Elements::kCount) {
      HalfLanes w[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) weight.LoadHalf(first + c, k, w[c]);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        HalfLanes row;
        Elements::LoadHalf(x + r * stride + k, row);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) part[r][c] += row * w[c];
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        std::memcpy(reinterpret_cast<float*>(&acc[r][c]) + offset, &part[r][c], sizeof part[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (whole < inner) {
      AddLastElements<Elements, kColumns>(x + r * stride + whole, weight, first, whole, inner - whole, acc[r]);
    }
    AddHalvedSums(acc[r], sums + r * kProductColumns);
  }
}

/// How far ahead of what is multiplied a column is fetched, in bytes.
constexpr std::int64_t kPrefetchedBytes = 1024;

/// The same for at most four sums, of kRows rows and 4 / kRows columns, which all fit into registers: columns are read
/// once.
template <class Elements, int kRows, class X, class Columns>
MR_INLINE void FewSumsTile(const X* x, std::int64_t stride, const Columns& weight, std::int64_t inner, float* sums) {
  constexpr int kColumns = 4 / kRows, kHalf = 8, kHalves = Columns::kBatch / kHalf;
  HalfLanes part[kRows][kColumns][2] = {};
  std::int64_t k = 0;
  for (; k + Columns::kBatch <= inner; k += Columns::kBatch) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      HalfLanes w[kHalves];
      weight.PrefetchAhead(c, k, kPrefetchedBytes);
      weight.LoadBatch(c, k, w);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int half = 0; half < kHalves; ++half) {
          HalfLanes row;
          Elements::LoadHalf(x + r * stride + k + half * kHalf, row);
          part[r][c][half % 2] += row * w[half];
        }
      }
    }
  }
  SumLanes acc[4] = {};
  std::memcpy(acc, part, sizeof part);
  for (; k < inner; k += Elements::kCount) {
    const std::int64_t count = inner - k < Elements::kCount ? inner - k : Elements::kCount;
    for (int r = 0; r < kRows; ++r) {
      AddLastElements<Elements, kColumns>(x + r * stride + k, weight, 0, k, count, acc + r * kColumns);
    }
  }
  AddHalvedSums(acc, sums);
}

/// kRows rows against `columns` columns. Where few rows leave registers free, more columns are in flight.
template <class Elements, int kRows, class T, class Columns>
MR_INLINE void ProductRows(const T* x, std::int64_t stride, const Columns& weight, std::int64_t columns,
                           std::int64_t inner, float* sums) {
  constexpr int kColumns = kRows <= 2 ? 8 : 4;
  std::int64_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
    ProductTile<Elements, kRows, kColumns>(x, stride, weight, c, inner, sums + c);
  }
  for (; c + 4 <= columns; c += 4) ProductTile<Elements, kRows, 4>(x, stride, weight, c, inner, sums + c);
  for (; c < columns; ++c) {
    // The other three columns of the tile are this one again, for want of another.
    for (int r = 0; r < kRows; ++r) {
      SumLanes acc[4] = {};
      for (std::int64_t k = 0; k < inner; k += Elements::kCount) {
        typename Elements::Register row, w;
        const std::int64_t count = inner - k < Elements::kCount ? inner - k : Elements::kCount;
        LoadSome<Elements>(x + r * stride + k, count, row);
        LoadColumn<Elements>(weight, c, k, count, w);
        Elements::MultiplyAdd(acc[0], row, w);
      }
      float own[4] = {};
      AddLaneSums(acc, own);
      sums[r * kProductColumns + c] += own[0];
    }
  }
}

/// sums[r][c] += x[r] · column[c], for all rows.
template <class Elements, class T, class Columns>
MR_INLINE void ProductOfAllRows(const T* x, std::int64_t stride, std::int64_t rows, const Columns& weight,
                                std::int64_t columns, std::int64_t inner, float* sums) {
  for (std::int64_t row = 0; row < rows;) {
    const T* const from = x + row * stride;
    float* const into = sums + row * kProductColumns;
    switch (rows - row) {
      case 1:
        ProductRows<Elements, 1>(from, stride, weight, columns, inner, into);
        row += 1;
        break;
      case 2:
        ProductRows<Elements, 2>(from, stride, weight, columns, inner, into);
        row += 2;
        break;
      case 3:
        ProductRows<Elements, 3>(from, stride, weight, columns, inner, into);
        row += 3;
        break;
      case 4:
      case 8:
        ProductRows<Elements, 4>(from, stride, weight, columns, inner, into);
        row += 4;
        break;
      case 5:
        ProductRows<Elements, 5>(from, stride, weight, columns, inner, into);
        row += 5;
        break;
      default:
        ProductRows<Elements, 6>(from, stride, weight, columns, inner, into);
        row += 6;
    }
  }
}

/// As ProductOfAllRows, by halved tiles, for two rows or more. All rows take four columns while these are in the first
/// cache.
template <class Elements, class X, class Columns>
MR_INLINE void HalvedProduct(const X* x, std::int64_t stride, std::int64_t rows, const Columns& weight,
                             std::int64_t columns, std::int64_t inner, float* sums) {
  const std::int64_t left = columns % 4, first = columns - left;
  for (std::int64_t c = 0; c < first; c += 4) {
    for (std::int64_t row = 0; row < rows;) {
      const X* const from = x + row * stride;
      float* const into = sums + row * kProductColumns + c;
      if (rows - row == 2 || rows - row == 4) {
        HalvedTile<Elements, 2>(from, stride, weight, c, inner, into);
        row += 2;
      } else {
        HalvedTile<Elements, 3>(from, stride, weight, c, inner, into);
        row += 3;
      }
    }
  }
  const Columns rest = weight.At(first, 1, 0);
  for (std::int64_t row = 0; left > 0 && row < rows; ++row) {
    ProductRows<Elements, 1>(x + row * stride, stride, rest, left, inner, sums + row * kProductColumns + first);
  }
}

/// The same for kRows rows, at most four. Columns of a tile are as far apart as can be, and each is read to its end.
/// kInner only orders the sum. So memory sees streams that never jump. Neighbouring columns, a part of each at a time,
/// take up to twice as long.
template <class Elements, int kRows, std::int64_t kInner, class X, class Columns>
MR_INLINE void FewRowsProduct(const X* x, const Columns& weight, std::int64_t columns, std::int64_t inner,
                              float* sums) {
  constexpr int kColumns = 4 / kRows;
  const std::int64_t distance = columns / kColumns, left = columns % kColumns, first = columns - left;
  for (std::int64_t c = 0; c < distance; ++c) {
    float four[4] = {};
    for (std::int64_t k = 0; k < inner; k += kInner) {
      const std::int64_t some = inner - k < kInner ? inner - k : kInner;
      FewSumsTile<Elements, kRows>(x + k, inner, weight.At(c, distance, k), some, four);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kColumns; ++i) sums[r * kProductColumns + c + i * distance] += four[r * kColumns + i];
    }
  }
  for (std::int64_t k = 0; left > 0 && k < inner; k += kInner) {
    const std::int64_t some = inner - k < kInner ? inner - k : kInner;
    for (int r = 0; r < kRows; ++r) {
      ProductRows<Elements, 1>(x + r * inner + k, inner, weight.At(first, 1, k), left, some,
                               sums + r * kProductColumns + first);
    }
  }
}

/// Columns whose numbers are written down at a time: they stay in a core's first or second cache.
constexpr std::int64_t kWrittenColumns = 4;

/// As HalvedProduct, of float32 numbers that weight.Write(column, inner, to) makes of a column. At most kInner of them.
template <class Elements, std::int64_t kInner, class X, class Columns>
MR_INLINE void WrittenProduct(const X* x, std::int64_t stride, std::int64_t rows, const Columns& weight,
                              std::int64_t columns, std::int64_t inner, float* sums) {
  constexpr std::int64_t kStride = kInner + 16;  // as far apart as no power of two is
  alignas(64) float numbers[kWrittenColumns * kStride];
  for (std::int64_t first = 0; first < columns; first += kWrittenColumns) {
    const std::int64_t some = columns - first < kWrittenColumns ? columns - first : kWrittenColumns;
    for (std::int64_t c = 0; c < some; ++c) {
      weight.PrefetchAll(first + c + kWrittenColumns, inner);
      weight.Write(first + c, inner, numbers + c * kStride);
    }
    const DenseColumns<Elements, float> written{numbers, kStride};
    HalvedProduct<Elements>(x, stride, rows, written, some, inner, sums + first);
  }
}

/// sums[r][c] += x[r] · column[c], for all rows, which are `inner` elements apart. kHalved: for registers of 32 bytes.
template <class Elements, bool kHalved, std::int64_t kInner, class X, class Columns>
MR_INLINE void AddProducts(const X* x, std::int64_t rows, const Columns& weight, std::int64_t columns,
                           std::int64_t inner, float* sums) {
  if constexpr (kHalved) {
    if (rows == 1) return FewRowsProduct<Elements, 1, kInner>(x, weight, columns, inner, sums);
    if (rows == 2) return FewRowsProduct<Elements, 2, kInner>(x, weight, columns, inner, sums);
    if constexpr (Columns::kAlwaysWritten) {
      if (rows == 3) return FewRowsProduct<Elements, 3, kInner>(x, weight, columns, inner, sums);
      if (rows == 4) return FewRowsProduct<Elements, 4, kInner>(x, weight, columns, inner, sums);
    }
  }
  for (std::int64_t k = 0; k < inner; k += kInner) {
    const std::int64_t some = inner - k < kInner ? inner - k : kInner;
    const Columns part = weight.At(0, 1, k);
    if constexpr (!kHalved) {
      ProductOfAllRows<Elements>(x + k, inner, rows, part, columns, some, sums);
    } else {
      if constexpr (!Columns::kAlwaysWritten) {
        if (rows < Columns::kWritingRows) {
          HalvedProduct<Elements>(x + k, inner, rows, part, columns, some, sums);
          continue;
        }
      }
      WrittenProduct<Elements, kInner>(x + k, inner, rows, part, columns, some, sums);
    }
  }
}

/// The product of x, which is op.x or what it was widened to.
template <class Elements, bool kHalved = false, class X, class T>
MR_INLINE void RowProductBody(const X* x, const RowProduct<T>& op, std::int64_t begin, std::int64_t end) {
  constexpr auto kInner = kProductBytes / static_cast<std::int64_t>(sizeof(X));
  float sums[kProductRows * kProductColumns];
  for (std::int64_t first_row = 0; first_row < op.rows; first_row += kProductRows) {
    const std::int64_t rows = op.rows - first_row < kProductRows ? op.rows - first_row : kProductRows;
    for (std::int64_t first = begin; first < end; first += kProductColumns) {
      const std::int64_t columns = end - first < kProductColumns ? end - first : kProductColumns;
      std::memset(sums, 0, sizeof sums);
      const DenseColumns<Elements, T> weight{op.weight + first * op.inner, op.inner};
      AddProducts<Elements, kHalved, kInner>(x + first_row * op.inner, rows, weight, columns, op.inner, sums);
      for (std::int64_t row = 0; row < rows; ++row) {
        T* const out = op.out + (first_row + row) * op.columns + first;
        for (std::int64_t c = 0; c < columns; ++c) {
          const float bias = op.bias != nullptr ? ToFloat(op.bias[first + c]) : 0.0F;
          out[c] = FromFloat<T>(sums[row * kProductColumns + c] + bias);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cpu
