// CodedProduct for processors with AVX-512. Compiled for these alone (millrace/engine/CMakeLists.txt). Numbers are made
// in registers, and used there.
#if defined(__x86_64__)
#include <immintrin.h>

#include "millrace/engine/ops/cpu/codes/coded_product_tiles.h"

namespace millrace::engine::cpu {
namespace {

/// Integers. Their scale is left to the end.
class Int8Tile {
 public:
  static constexpr bool kWholeRegisters = false;

  Int8Tile(const Int8Columns& weight, std::int64_t first) : codes_(weight.codes + first), stride_(weight.stride) {}
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    Widen(codes_ + column * stride_ + k, to);
  }
  MR_INLINE void Load(std::int64_t column, std::int64_t k, std::int64_t count, SumLanes& to) const {
    std::int8_t all[kCodeLanes] = {};
    std::memcpy(all, codes_ + column * stride_ + k, static_cast<std::size_t>(count));
    Widen(all, to);
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes_ + column * stride_ + k, 0, 3);
  }
  MR_INLINE void AddProducts(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                             std::int64_t inner, float* sums) const {
    ProductOfAllRows<WidenedElements>(x, stride, rows, *this, columns, inner, sums);
  }

 private:
  MR_INLINE static void Widen(const std::int8_t* from, SumLanes& to) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    to = reinterpret_cast<SumLanes>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }

  const std::int8_t* codes_;
  std::int64_t stride_;
};

/// A register holds all 16 numbers that a code can stand for.
class Nf4Tile {
 public:
  static constexpr bool kWholeRegisters = true;

  Nf4Tile(const Nf4Columns& weight, std::int64_t first)
      : codes_(weight.codes + first / 2), first_(first), weight_(weight) {}
  MR_INLINE void Load(std::int64_t column, std::int64_t k, SumLanes& to) const {
    const __m512i shifts = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    long long bytes = 0;
    std::memcpy(&bytes, codes_ + column * weight_.stride + k / 2, sizeof bytes);
    const __m512i codes = _mm512_srlv_epi32(_mm512_set1_epi64(bytes), shifts);
    to = reinterpret_cast<SumLanes>(_mm512_permutexvar_ps(codes, _mm512_loadu_ps(weight_.map)));
    to *= weight_.scales[column * weight_.scales_stride + ((first_ + k) >> weight_.block_bits)];
  }
  MR_INLINE void Prefetch(std::int64_t column, std::int64_t k) const {
    __builtin_prefetch(codes_ + column * weight_.stride + k / 2, 0, 3);
  }
  MR_INLINE void AddProducts(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                             std::int64_t inner, float* sums) const {
    ProductOfAllRows<WidenedElements>(x, stride, rows, *this, columns, inner, sums);
  }

 private:
  const std::uint8_t* codes_;
  std::int64_t first_;
  Nf4Columns weight_;
};

}  // namespace

void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op) { CodedProductBody<Int8Tile>(op); }
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op) { CodedProductBody<Nf4Tile>(op); }

}  // namespace millrace::engine::cpu
#endif
