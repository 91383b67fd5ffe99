// CodedProduct for processors with AVX2. Compiled for these alone (millrace/engine/CMakeLists.txt).
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/codes/coded_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

struct NumbersInAvx2 {
  MR_INLINE static void Widen(const std::int8_t* from, HalfLanes& to) {
    const __m256i words = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    to = reinterpret_cast<HalfLanes>(_mm256_cvtepi32_ps(words));
  }
  /// Two registers hold the 16 numbers. The fourth bit of a code chooses between them.
  MR_INLINE static void LookUp(const float* map, const std::uint8_t* bytes, std::int64_t half, HalfLanes& to) {
    const __m256i shifts =
        half == 0 ? _mm256_set_epi32(12, 12, 8, 8, 4, 4, 0, 0) : _mm256_set_epi32(28, 28, 24, 24, 20, 20, 16, 16);
    long long word = 0;
    std::memcpy(&word, bytes, sizeof word);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi64x(word), shifts);
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map), codes);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map + 8), codes);
    const __m256 chooses = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
    to = reinterpret_cast<HalfLanes>(_mm256_blendv_ps(low, high, chooses));
  }
};

}  // namespace

void Int8ProductInAvx2(const CodedProduct<Int8Columns>& op) { CodedProductBody<HalvedInt8Tile<NumbersInAvx2>>(op); }
void Nf4ProductInAvx2(const CodedProduct<Nf4Columns>& op) { CodedProductBody<HalvedNf4Tile<NumbersInAvx2>>(op); }

}  // namespace millrace::engine::cpu
#endif
