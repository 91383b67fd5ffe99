// RowProduct of bfloat16 for processors with AVX2. Compiled for these alone (millrace/engine/CMakeLists.txt).
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

/// Widens 8 numbers of bfloat16 by one instruction. g++ 12 widens them in two parts, and joins these.
struct WidenedInAvx2 : WidenedElements {
  using WidenedElements::LoadHalf;
  MR_INLINE static void LoadHalf(const Bf16* from, HalfLanes& to) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    to = reinterpret_cast<HalfLanes>(_mm256_slli_epi32(words, 16));
  }
};

}  // namespace

void RowProductInAvx2(const float* x, const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<WidenedInAvx2, true>(x, op, begin, end);
}

}  // namespace millrace::engine::cpu
#endif
