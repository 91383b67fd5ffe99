// The part of CodedProduct that is the same for every processor, for files that compile it for different ones. All
// names have internal linkage.
#pragma once

#include "millrace/engine/ops/cpu/coded_product.h"
#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {
namespace {  // NOLINT(google-build-namespaces): see row_product_tiles.h

static_assert(kCodedColumns == kProductColumns);

constexpr std::int64_t kProductInner = kProductBytes / static_cast<std::int64_t>(sizeof(float));

/// Returns the element of 16 that is in a lane: 8 bytes are in all pairs of lanes, and each pair looks at another half
/// byte.
MR_INLINE std::int64_t ElementInLane(std::int64_t lane) { return 8 * (lane % 2) + ((lane / 2) ^ 1); }

/// A code of E4M3 whose bits are shifted to those of float16, whose exponents are larger by 8, is 2^-8 times its
/// number.
constexpr float kFp8InHalf = 0x1p8F;

/// Returns the factor that a sum over a whole column is multiplied with.
MR_INLINE float ScaleOf(const Int8Columns& weight, std::int64_t column) { return weight.scales[column]; }
MR_INLINE float ScaleOf(const Fp8Columns& weight, std::int64_t column) { return weight.scales[column] * kFp8InHalf; }
MR_INLINE float ScaleOf(const Nf4Columns&, std::int64_t) { return 1; }

template <class Tile, class Columns>
MR_INLINE void CodedProductBody(const CodedProduct<Columns>& op) {
  const Tile tile(op.weight);
  float sums[kProductRows * kProductColumns];
  for (std::int64_t first_row = 0; first_row < op.rows; first_row += kProductRows) {
    const std::int64_t rows = op.rows - first_row < kProductRows ? op.rows - first_row : kProductRows;
    std::memset(sums, 0, sizeof sums);
    AddProducts<WidenedElements, Tile::kHalved, kProductInner>(op.x + first_row * op.inner, rows, tile, op.columns,
                                                               op.inner, sums);
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const out = op.out + (first_row + row) * op.out_stride;
      for (std::int64_t c = 0; c < op.columns; ++c) {
        const float bias = op.bias != nullptr ? op.bias[c] : 0.0F;
        out[c] = sums[row * kProductColumns + c] * ScaleOf(op.weight, c) + bias;
      }
    }
  }
}

/// Columns of bytes, whose scale is left to the end. Numbers::Widen(from, to) makes a register of numbers, which has
/// HalfLanes or, unless kHalved, SumLanes.
template <class Columns, class Numbers>
class ByteTile {
  using Code = std::remove_cvref_t<decltype(*Columns::codes)>;

 public:
  static constexpr bool kHalved = Numbers::kHalved;
  static constexpr bool kWholeRegisters = false;
  static constexpr bool kAlwaysWritten = true;
  static constexpr std::int64_t kBatch = kCodeLanes;

  explicit ByteTile(const Columns& weight) : codes_(weight.codes), stride_(weight.stride) {}
  MR_INLINE ByteTile At(std::int64_t column, std::int64_t distance, std::int64_t k) const {
    ByteTile tile = *this;
    tile.codes_ = AddressOf(column, k);
    tile.stride_ = distance * stride_;
    return tile;
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const { Load(AddressOf(column, k), to); }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, std::int64_t count, SumLanes& to) const {
    Code all[kCodeLanes] = {};
    std::memcpy(all, AddressOf(column, k), static_cast<std::size_t>(count));
    Load(all, to);
  }
  MR_INLINE void LoadBatch(std::int64_t column, std::int64_t k, HalfLanes* to) const {
    Numbers::Widen(AddressOf(column, k), to[0]);
    Numbers::Widen(AddressOf(column, k + 8), to[1]);
  }
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    std::int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
      HalfLanes numbers;
      Numbers::Widen(AddressOf(column, k), numbers);
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
    if (k == count) return;
    Code rest[8] = {};
    std::memcpy(rest, AddressOf(column, k), static_cast<std::size_t>(count - k));
    HalfLanes numbers;
    Numbers::Widen(rest, numbers);
    std::memcpy(to + k, &numbers, static_cast<std::size_t>(count - k) * sizeof *to);
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const { __builtin_prefetch(AddressOf(column, k), 0, 3); }
  MR_INLINE void PrefetchAhead(std::int64_t column, std::int64_t k, std::int64_t bytes) const {
    Prefetch(column, k + bytes);
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    for (std::int64_t k = 0; k < count; k += 64) Prefetch(column, k);
  }

 private:
  MR_INLINE const Code* AddressOf(std::int64_t column, std::int64_t k) const { return codes_ + column * stride_ + k; }
  MR_INLINE static void Load(const Code* from, SumLanes& to) {
    if constexpr (kHalved) {
      HalfLanes halves[2];
      Numbers::Widen(from, halves[0]);
      Numbers::Widen(from + 8, halves[1]);
      std::memcpy(&to, halves, sizeof to);
    } else {
      Numbers::Widen(from, to);
    }
  }

  const Code* codes_;
  std::int64_t stride_;
};

/// Columns of codes of NF4. Numbers(map) makes numbers without scale: its LookUp(bytes, to) the 16 of 8 bytes, in two
/// registers of HalfLanes or, unless kHalved, in one of SumLanes. If kHalved, LookUpBatch(bytes, to) makes kBatch.
template <class Numbers>
class Nf4Tile {
 public:
  static constexpr bool kHalved = Numbers::kHalved;
  static constexpr bool kWholeRegisters = true;
  static constexpr bool kAlwaysWritten = true;
  static constexpr std::int64_t kBatch = Numbers::kBatch;

  explicit Nf4Tile(const Nf4Columns& weight) : numbers_(weight.map), weight_(weight) {}
  MR_INLINE Nf4Tile At(std::int64_t column, std::int64_t distance, std::int64_t k) const {
    Nf4Tile tile = *this;
    tile.weight_.codes = AddressOf(column, k);
    tile.weight_.stride = distance * weight_.stride;
    tile.weight_.scales += column * weight_.scales_stride;
    tile.weight_.scales_stride = distance * weight_.scales_stride;
    tile.first_ = first_ + k;
    return tile;
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    if constexpr (kHalved) {
      HalfLanes halves[2];
      numbers_.LookUp(AddressOf(column, k), halves);
      std::memcpy(&to, halves, sizeof to);
    } else {
      numbers_.LookUp(AddressOf(column, k), to);
    }
    to *= ScaleAt(column, k);
  }
  MR_INLINE void LoadBatch(std::int64_t column, std::int64_t k, HalfLanes* to) const {
    numbers_.LookUpBatch(AddressOf(column, k), to);
#pragma GCC unroll 4
    for (std::int64_t half = 0; half < kBatch / 8; ++half) to[half] *= ScaleAt(column, k + half / 2 * kCodeLanes);
  }
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    std::int64_t k = 0;
    for (; k + kBatch <= count; k += kBatch) {
      HalfLanes numbers[kBatch / 8];
      LoadBatch(column, k, numbers);
      std::memcpy(to + k, numbers, sizeof numbers);
    }
    for (; k < count; k += kCodeLanes) {
      SumLanes numbers;
      Load(column, k, numbers);
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const { __builtin_prefetch(AddressOf(column, k), 0, 3); }
  MR_INLINE void PrefetchAhead(std::int64_t column, std::int64_t k, std::int64_t bytes) const {
    Prefetch(column, k + 2 * bytes);
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    for (std::int64_t k = 0; k < count; k += 128) Prefetch(column, k);
  }

 private:
  MR_INLINE const std::uint8_t* AddressOf(std::int64_t column, std::int64_t k) const {
    return weight_.codes + column * weight_.stride + k / 2;
  }
  MR_INLINE float ScaleAt(std::int64_t column, std::int64_t k) const {
    return weight_.scales[column * weight_.scales_stride + ((first_ + k) >> weight_.block_bits)];
  }

  Numbers numbers_;
  Nf4Columns weight_;  ///< from element first_ on
  std::int64_t first_ = 0;
};

}  // namespace
}  // namespace millrace::engine::cpu
