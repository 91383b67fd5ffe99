// RowProduct for processors that multiply pairs of bfloat16. Compiled for these alone (millrace/engine/CMakeLists.txt).
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/row_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

/// A lane of the sum gets the products of two neighbours.
struct Bf16Pairs {
  using Register = __m512i;
  static constexpr std::int64_t kCount = 32;
  MR_INLINE static void Load(const Bf16* from, Register& to) { to = _mm512_loadu_si512(from); }
  MR_INLINE static void MultiplyAdd(SumLanes& sum, const Register& a, const Register& b) {
    sum = reinterpret_cast<SumLanes>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
  }
};

}  // namespace

void RowProductByPairs(const RowProduct<Bf16>& op, std::int64_t begin, std::int64_t end) {
  RowProductBody<Bf16Pairs>(op.x, op, begin, end);
}

}  // namespace millrace::engine::cpu
#endif
