// CodedProduct for processors with AVX-512. Compiled for these alone (millrace/engine/CMakeLists.txt).
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/codes/coded_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

struct WideningInOne {
  MR_INLINE static void Widen(const std::int8_t* from, SumLanes& to) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    to = reinterpret_cast<SumLanes>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
};

/// A register holds all 16 numbers.
struct LookUpIn16 {
  MR_INLINE static void LookUp(const float* map, const CodeWords& codes, SumLanes& to) {
    to = reinterpret_cast<SumLanes>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(codes), _mm512_loadu_ps(map)));
  }
};

}  // namespace

void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op) { CodedProductBody<Int8Tile<WideningInOne>>(op); }
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op) { CodedProductBody<Nf4Tile<LookUpIn16>>(op); }

}  // namespace millrace::engine::cpu
#endif
