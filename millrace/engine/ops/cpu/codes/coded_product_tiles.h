// What CodedProduct does for every processor, for two files that compile it for different ones. All names have internal
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

}  // namespace
}  // namespace millrace::engine::cpu
