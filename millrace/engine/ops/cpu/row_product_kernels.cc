#include <algorithm>
#include <cstdint>
#include <vector>

#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {

#if defined(__x86_64__)
void RowProductByPairs(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end);  // row_product_pairs.cc
void RowProductInAvx2(const float* x, const RowProduct<Bf16>& op, std::int64_t begin,
                      std::int64_t end);  // row_product_avx2.cc
#endif

namespace {

bool MultipliesPairs() {
#if defined(__x86_64__)
  static const bool multiplies = __builtin_cpu_supports("avx512bf16") != 0;
  return multiplies;
#else
  return false;
#endif
}

}  // namespace

MR_SIMD_TO_V3 static void HalvedProductF32(const RowProduct<float>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements, true>(op.x, op, begin, end);
}
static void HalvedProductBf16(const float* x, const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements, true>(x, op, begin, end);
}
MR_SIMD_V4 static void RowProductF32(const RowProduct<float>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements>(op.x, op, begin, end);
}
MR_SIMD_V4 static void RowProductBf16(const float* x, const RowProduct<Bf16>& op, std::int64_t begin,
                                      std::int64_t end) {
  RowProductBody<WidenedElements>(x, op, begin, end);
}
MR_SIMD static void Widen(const Bf16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = ToFloat(from[i]);
}

/// For processors that do not multiply pairs. x: the rows of `op`, widened.
static void ProductOfWidened(const float* x, const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  if (HasWideRegisters()) return RowProductBf16(x, op, begin, end);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v3")) return RowProductInAvx2(x, op, begin, end);
#endif
  HalvedProductBf16(x, op, begin, end);
}

template <>
void RowProduct<float>::Run(std::int64_t begin, std::int64_t end) const {
  if (HasWideRegisters()) return RowProductF32(*this, begin, end);
  HalvedProductF32(*this, begin, end);
}
template <>
void RowProduct<Bf16>::Run(std::int64_t begin, std::int64_t end) const {
#if defined(__x86_64__)
  if (MultipliesPairs()) return RowProductByPairs(*this, begin, end);
#endif
  // Each tile would widen the rows again.
  thread_local std::vector<float> widened;
  for (std::int64_t row = 0; row < rows; row += kProductRows) {
    RowProduct some = *this;
    some.rows = std::min(rows - row, kProductRows);
    some.x += row * inner;
    some.out += row * columns;
    widened.resize(static_cast<std::size_t>(some.rows * inner));
    Widen(some.x, std::ssize(widened), widened.data());
    ProductOfWidened(widened.data(), some, begin, end);
  }
}

}  // namespace millrace::engine::cpu
