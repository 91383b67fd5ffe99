// The tiles of CodedProduct, for two files that compile them for different processors. All names have internal linkage.
#pragma once

#include "millrace/engine/ops/cpu/codes/coded_product.h"
#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {
namespace {  // NOLINT(google-build-namespaces): see row_product_tiles.h

static_assert(kCodedColumns == kProductColumns);

constexpr std::int64_t kProductInner = kProductBytes / static_cast<std::int64_t>(sizeof(float));
using CodeBytes = std::int8_t __attribute__((vector_size(16)));
using CodeLongs = std::uint64_t __attribute__((vector_size(64)));
using CodeWords = std::int32_t __attribute__((vector_size(64)));

/// Integers of a tile, from element `first` on. Their scale is left to the end. Widening::Widen makes numbers of 16.
template <class Widening>
struct Int8Tile {
  static constexpr bool kWholeRegisters = false;
  const std::int8_t* codes;
  std::int64_t stride;

  Int8Tile(const Int8Columns& weight, std::int64_t first) : codes(weight.codes + first), stride(weight.stride) {}
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    Widening::Widen(codes + column * stride + k, to);
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, std::int64_t count, SumLanes& to) const {
    std::int8_t all[kCodeLanes] = {};
    std::memcpy(all, codes + column * stride + k, static_cast<std::size_t>(count));
    Widening::Widen(all, to);
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes + column * stride + k, 0, 3);
  }
  MR_INLINE static float ScaleOf(const Int8Columns& weight, std::int64_t column) { return weight.scales[column]; }
};

/// Which element of 16 is in a lane: 8 bytes are in all pairs of lanes, and each pair looks at another half byte.
MR_INLINE std::int64_t ElementInLane(std::int64_t lane) { return 8 * (lane % 2) + ((lane / 2) ^ 1); }

/// Codes of NF4 of a tile, from element `first` on. Table::LookUp makes numbers of 16.
template <class Table>
struct Nf4Tile {
  static constexpr bool kWholeRegisters = true;
  const std::uint8_t* codes;
  const float *map, *scales;
  std::int64_t stride, scales_stride, first;
  int block_bits;

  Nf4Tile(const Nf4Columns& weight, std::int64_t from)
      : codes(weight.codes + from / 2),
        map(weight.map),
        scales(weight.scales),
        stride(weight.stride),
        scales_stride(weight.scales_stride),
        first(from),
        block_bits(weight.block_bits) {}
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    constexpr FullWords kShifts = {0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28};
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, codes + column * stride + k / 2, sizeof bytes);
    const CodeLongs everywhere = CodeLongs{} + bytes;
    const FullWords shifted = reinterpret_cast<FullWords>(everywhere) >> kShifts;
    Table::LookUp(map, reinterpret_cast<CodeWords>(shifted), to);
    to *= scales[column * scales_stride + ((first + k) >> block_bits)];
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes + column * stride + k / 2, 0, 3);
  }
  MR_INLINE static float ScaleOf(const Nf4Columns&, std::int64_t) { return 1; }
};

template <class Tile, class Columns>
MR_INLINE void CodedProductBody(const CodedProduct<Columns>& op) {
  float sums[kProductRows * kProductColumns];
  for (std::int64_t first_row = 0; first_row < op.rows; first_row += kProductRows) {
    const std::int64_t rows = op.rows - first_row < kProductRows ? op.rows - first_row : kProductRows;
    std::memset(sums, 0, sizeof sums);
    for (std::int64_t first = 0; first < op.inner; first += kProductInner) {
      const std::int64_t inner = op.inner - first < kProductInner ? op.inner - first : kProductInner;
      const float* const x = op.x + first_row * op.inner + first;
      const Tile tile(op.weight, first);
      ProductOfAllRows<WidenedElements>(x, op.inner, rows, tile, op.columns, inner, sums);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const out = op.out + (first_row + row) * op.out_stride;
      for (std::int64_t c = 0; c < op.columns; ++c) {
        const float bias = op.bias != nullptr ? op.bias[c] : 0.0F;
        out[c] = sums[row * kProductColumns + c] * Tile::ScaleOf(op.weight, c) + bias;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cpu
