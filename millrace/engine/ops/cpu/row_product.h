// Products of rows with a weight, for generation. A row of the result has the same bits whatever rows are beside it:
// lanes run along the inner dimension, and every sum has an order that depends on its length alone.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cpu/simd.h"

namespace millrace::engine::cpu {

/// out = x · weightᵀ + bias: [rows, columns] from x [rows, inner] and weight [columns, inner], all dense. T is float or
/// Bf16; sums are float32. Reads the weight once for up to kProductRows rows, so that few rows take as long as memory
/// needs for the weight. Where the processor multiplies pairs of bfloat16, x and the weight are multiplied so.
template <class T>
struct RowProduct {
  const T *x, *weight;
  const T* bias;  ///< [columns] or null
  T* out;
  std::int64_t rows, columns, inner;

  /// Computes columns [begin, end), for one thread. `begin` is a multiple of kProductColumns.
  void Run(std::int64_t begin, std::int64_t end) const;
};
constexpr std::int64_t kProductRows = 120;    ///< rows whose sums a core keeps at a time
constexpr std::int64_t kProductColumns = 32;  ///< columns of these sums: their weights stay in a core's second cache

}  // namespace millrace::engine::cpu
