// What CodedProduct does for every processor, for files that compile it for different ones. All names have internal
// linkage.
#pragma once

#include "millrace/engine/ops/cpu/codes/coded_product.h"
#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {
namespace {  // NOLINT(google-build-namespaces): see row_product_tiles.h

static_assert(kCodedColumns == kProductColumns);

constexpr std::int64_t kProductInner = kProductBytes / static_cast<std::int64_t>(sizeof(float));

/// Which element of 16 is in a lane: 8 bytes are in all pairs of lanes, and each pair looks at another half byte.
MR_INLINE std::int64_t ElementInLane(std::int64_t lane) { return 8 * (lane % 2) + ((lane / 2) ^ 1); }

/// What a sum over a whole column is still multiplied with.
MR_INLINE float ScaleOf(const Int8Columns& weight, std::int64_t column) { return weight.scales[column]; }
MR_INLINE float ScaleOf(const Nf4Columns&, std::int64_t) { return 1; }

/// Tile(weight, first) stands for the elements from `first` on. Its AddProducts(x, stride, rows, columns, inner, sums)
/// does sums[r][c] += x[r] · column[c] over `inner` of them.
template <class Tile, class Columns>
MR_INLINE void CodedProductBody(const CodedProduct<Columns>& op) {
  float sums[kProductRows * kProductColumns];
  for (std::int64_t first_row = 0; first_row < op.rows; first_row += kProductRows) {
    const std::int64_t rows = op.rows - first_row < kProductRows ? op.rows - first_row : kProductRows;
    std::memset(sums, 0, sizeof sums);
    for (std::int64_t first = 0; first < op.inner; first += kProductInner) {
      const std::int64_t inner = op.inner - first < kProductInner ? op.inner - first : kProductInner;
      const Tile tile(op.weight, first);
      tile.AddProducts(op.x + first_row * op.inner + first, op.inner, rows, op.columns, inner, sums);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const out = op.out + (first_row + row) * op.out_stride;
      for (std::int64_t c = 0; c < op.columns; ++c) {
        const float bias = op.bias != nullptr ? op.bias[c] : 0.0F;
        out[c] = sums[row * kProductColumns + c] * ScaleOf(op.weight, c) + bias;
      }
    }
  }
}

/// With at most so many rows, numbers are made where they are multiplied. For more rows they are made once, and written
/// down.
constexpr std::int64_t kDirectRows = 2;

/// What the two tiles below share. Own has LoadHalf(column, k, to), which makes the 8 numbers from element k on.
template <class Own>
class HalvedCodes {
 public:
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    HalfLanes halves[2];
    own().LoadHalf(column, k, halves[0]);
    own().LoadHalf(column, k + 8, halves[1]);
    std::memcpy(&to, halves, sizeof to);
  }
  MR_INLINE void AddProducts(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                             std::int64_t inner, float* sums) const {
    if (rows <= kDirectRows) {
      HalvedProduct<WidenedElements>(x, stride, rows, own(), columns, inner, sums);
    } else {
      WrittenProduct<WidenedElements, kProductInner>(x, stride, rows, own(), columns, inner, sums);
    }
  }

 private:
  MR_INLINE const Own& own() const { return static_cast<const Own&>(*this); }
};

/// Integers, for registers of half the lanes. Their scale is left to the end. Numbers::Widen(from, to) makes 8 of them.
template <class Numbers>
class HalvedInt8Tile : public HalvedCodes<HalvedInt8Tile<Numbers>> {
 public:
  static constexpr bool kWholeRegisters = false;
  using HalvedCodes<HalvedInt8Tile>::Load;

  HalvedInt8Tile(const Int8Columns& weight, std::int64_t first)
      : codes_(weight.codes + first), stride_(weight.stride) {}
  MR_INLINE HalvedInt8Tile From(std::int64_t column) const {
    HalvedInt8Tile tile = *this;
    tile.codes_ += column * stride_;
    return tile;
  }
  MR_INLINE void LoadHalf(std::int64_t column, std::int64_t k, HalfLanes& to) const {
    Numbers::Widen(codes_ + column * stride_ + k, to);
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, std::int64_t count, SumLanes& to) const {
    float all[kCodeLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) all[i] = codes_[column * stride_ + k + i];
    std::memcpy(&to, all, sizeof to);
  }
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    std::int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
      HalfLanes numbers;
      LoadHalf(column, k, numbers);
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
    for (; k < count; ++k) to[k] = codes_[column * stride_ + k];
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes_ + column * stride_ + k, 0, 3);
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    for (std::int64_t k = 0; k < count; k += 64) Prefetch(column, k);
  }

 private:
  const std::int8_t* codes_;
  std::int64_t stride_;
};

/// The same for codes of NF4. Numbers::LookUp(map, bytes, half, to) makes 8 of the 16 numbers of 8 bytes, without
/// scale.
template <class Numbers>
class HalvedNf4Tile : public HalvedCodes<HalvedNf4Tile<Numbers>> {
 public:
  static constexpr bool kWholeRegisters = true;

  HalvedNf4Tile(const Nf4Columns& weight, std::int64_t first)
      : codes_(weight.codes + first / 2), first_(first), weight_(weight) {}
  MR_INLINE HalvedNf4Tile From(std::int64_t column) const {
    HalvedNf4Tile tile = *this;
    tile.codes_ += column * weight_.stride;
    tile.weight_.scales += column * weight_.scales_stride;
    return tile;
  }
  MR_INLINE void LoadHalf(std::int64_t column, std::int64_t k, HalfLanes& to) const {
    Numbers::LookUp(weight_.map, codes_ + column * weight_.stride + k / 16 * 8, k / 8 % 2, to);
    to *= weight_.scales[column * weight_.scales_stride + ((first_ + k) >> weight_.block_bits)];
  }
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    for (std::int64_t k = 0; k < count; k += 8) {
      HalfLanes numbers;
      LoadHalf(column, k, numbers);
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes_ + column * weight_.stride + k / 2, 0, 3);
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    for (std::int64_t k = 0; k < count; k += 128) Prefetch(column, k);
  }

 private:
  const std::uint8_t* codes_;
  std::int64_t first_;
  Nf4Columns weight_;
};

}  // namespace
}  // namespace millrace::engine::cpu
