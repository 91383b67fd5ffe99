#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {

#if defined(__x86_64__)
void RowProductByPairs(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end);  // row_product_pairs.cc
void RowProductInAvx2(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end);   // row_product_avx2.cc
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

MR_SIMD static void HalvedProductF32(const RowProduct<float>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements, true>(op, begin, end);
}
MR_SIMD static void HalvedProductBf16(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements, true>(op, begin, end);
}
MR_SIMD static void RowProductF32(const RowProduct<float>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements>(op, begin, end);
}
MR_SIMD static void RowProductBf16(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedElements>(op, begin, end);
}

template <>
void RowProduct<float>::Run(std::int64_t begin, std::int64_t end) const {
  if (!HasWideRegisters()) return HalvedProductF32(*this, begin, end);
  RowProductF32(*this, begin, end);
}
template <>
void RowProduct<Bf16>::Run(std::int64_t begin, std::int64_t end) const {
#if defined(__x86_64__)
  if (MultipliesPairs()) return RowProductByPairs(*this, begin, end);
  if (!HasWideRegisters() && __builtin_cpu_supports("x86-64-v3")) return RowProductInAvx2(*this, begin, end);
#endif
  if (!HasWideRegisters()) return HalvedProductBf16(*this, begin, end);
  RowProductBf16(*this, begin, end);
}

}  // namespace millrace::engine::cpu
