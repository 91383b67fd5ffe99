// CodedProduct for processors with AVX-512. Compiled for these alone (millrace/engine/CMakeLists.txt). Numbers are made
// in registers, and used there.
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/coded_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

struct WidenedInAvx512 {
  static constexpr bool kHalved = false;
  MR_INLINE static void Widen(const std::int8_t* from, SumLanes& to) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    to = reinterpret_cast<SumLanes>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
};

struct Fp8WidenedInAvx512 {
  static constexpr bool kHalved = false;
  MR_INLINE static void Widen(const std::uint8_t* from, SumLanes& to) {
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    // The sign, and the other bits next to it but one: float16 has one more of exponent.
    const __m256i shifted = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 1);
    const __m256i halves = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbfff)));
    to = reinterpret_cast<SumLanes>(_mm512_cvtph_ps(halves));
  }
};

/// A register holds all 16 numbers that a code can stand for.
class PermutedInAvx512 {
 public:
  static constexpr bool kHalved = false;

  explicit PermutedInAvx512(const float* map) : map_(_mm512_loadu_ps(map)) {}
  MR_INLINE void LookUp(const std::uint8_t* from, SumLanes& to) const {
    const __m512i shifts = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    long long bytes = 0;
    std::memcpy(&bytes, from, sizeof bytes);
    const __m512i codes = _mm512_srlv_epi32(_mm512_set1_epi64(bytes), shifts);
    to = reinterpret_cast<SumLanes>(_mm512_permutexvar_ps(codes, map_));
  }

 private:
  __m512 map_;
};

}  // namespace

void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op) {
  CodedProductBody<ByteTile<Int8Columns, WidenedInAvx512>>(op);
}
void Fp8ProductInAvx512(const CodedProduct<Fp8Columns>& op) {
  CodedProductBody<ByteTile<Fp8Columns, Fp8WidenedInAvx512>>(op);
}
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op) { CodedProductBody<Nf4Tile<PermutedInAvx512>>(op); }

}  // namespace millrace::engine::cpu
#endif
