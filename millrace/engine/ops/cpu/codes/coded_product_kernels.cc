#include "millrace/engine/ops/cpu/codes/coded_product_tiles.h"

namespace millrace::engine::cpu {

#if defined(__x86_64__)
void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op);  // coded_product_avx512.cc
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op);
#endif

/// A function of its own, with a loop of whole vectors: otherwise g++ 12 converts one code at a time.
MR_SIMD_TO_V3 static void WriteIntegers(const std::int8_t* __restrict codes, std::int64_t count, float* __restrict to) {
  const std::int64_t whole = count / 32 * 32;
  for (std::int64_t k = 0; k < whole; ++k) to[k] = codes[k];
  for (std::int64_t k = whole; k < count; ++k) to[k] = codes[k];
}

namespace {

/// Registers smaller than those of AVX-512 have no room for numbers beside sums: numbers are written down. The scale is
/// left to the end.
class WrittenInt8Tile {
 public:
  WrittenInt8Tile(const Int8Columns& weight, std::int64_t first)
      : codes_(weight.codes + first), stride_(weight.stride) {}
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    WriteIntegers(codes_ + column * stride_, count, to);
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    for (std::int64_t k = 0; k < count; k += 64) __builtin_prefetch(codes_ + column * stride_ + k, 0, 3);
  }
  MR_INLINE void AddProducts(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                             std::int64_t inner, float* sums) const {
    WrittenProduct<WidenedElements, kProductInner>(x, stride, rows, *this, columns, inner, sums);
  }

 private:
  const std::int8_t* codes_;
  std::int64_t stride_;
};

/// Two registers hold the numbers that a code can stand for: the first 8, and the other 8.
class WrittenNf4Tile {
 public:
  WrittenNf4Tile(const Nf4Columns& weight, std::int64_t first) : first_(first), weight_(weight) {}
  MR_INLINE void Write(std::int64_t column, std::int64_t count, float* to) const {
    using Longs = std::uint64_t __attribute__((vector_size(32)));
    using Words = std::int32_t __attribute__((vector_size(32)));
    constexpr HalfFullWords kShifts[] = {{0, 0, 4, 4, 8, 8, 12, 12}, {16, 16, 20, 20, 24, 24, 28, 28}};
    const std::uint8_t* const codes = weight_.codes + column * weight_.stride + first_ / 2;
    const float* const scales = weight_.scales + column * weight_.scales_stride;
    for (std::int64_t k = 0; k < count;) {
      const std::int64_t block = (first_ + k) >> weight_.block_bits;
      std::int64_t end = ((block + 1) << weight_.block_bits) - first_;
      if (end > count) end = count;
      HalfLanes low, high;
      std::memcpy(&low, weight_.map, sizeof low);
      std::memcpy(&high, weight_.map + 8, sizeof high);
      low *= scales[block];
      high *= scales[block];
      for (; k < end; k += kCodeLanes) {
        std::uint64_t bytes = 0;
        std::memcpy(&bytes, codes + k / 2, sizeof bytes);
        const auto everywhere = reinterpret_cast<HalfFullWords>(Longs{} + bytes);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          HalfLanes numbers;
          LookUp(low, high, reinterpret_cast<Words>(everywhere >> kShifts[half]), numbers);
          std::memcpy(to + k + 8 * static_cast<std::int64_t>(half), &numbers, sizeof numbers);
        }
      }
    }
  }
  MR_INLINE void PrefetchAll(std::int64_t column, std::int64_t count) const {
    const std::uint8_t* const codes = weight_.codes + column * weight_.stride + first_ / 2;
    for (std::int64_t k = 0; k < count; k += 128) __builtin_prefetch(codes + k / 2, 0, 3);
  }
  MR_INLINE void AddProducts(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                             std::int64_t inner, float* sums) const {
    WrittenProduct<WidenedElements, kProductInner>(x, stride, rows, *this, columns, inner, sums);
  }

 private:
  template <class Words>
  MR_INLINE static void LookUp(const HalfLanes& low, const HalfLanes& high, const Words& codes, HalfLanes& to) {
#if defined(__GNUC__) && !defined(__clang__)
    to = __builtin_shuffle(low, high, codes);
#else
    for (int lane = 0; lane < 8; ++lane) {
      const int code = codes[lane] & 15;
      to[lane] = code < 8 ? low[code] : high[code - 8];
    }
#endif
  }

  std::int64_t first_;
  Nf4Columns weight_;
};

bool HasAvx512() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("x86-64-v4") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace

MR_SIMD_TO_V3 static void Int8Product(const CodedProduct<Int8Columns>& op) { CodedProductBody<WrittenInt8Tile>(op); }
MR_SIMD_TO_V3 static void Nf4Product(const CodedProduct<Nf4Columns>& op) { CodedProductBody<WrittenNf4Tile>(op); }

template <>
void CodedProduct<Int8Columns>::Run() const {
#if defined(__x86_64__)
  if (HasAvx512()) return Int8ProductInAvx512(*this);
#endif
  Int8Product(*this);
}
template <>
void CodedProduct<Nf4Columns>::Run() const {
#if defined(__x86_64__)
  if (HasAvx512()) return Nf4ProductInAvx512(*this);
#endif
  Nf4Product(*this);
}

void OrderForNf4(const float* x, std::int64_t count, float* out) {
  for (std::int64_t k = 0; k < count; k += kCodeLanes) {
    for (std::int64_t lane = 0; lane < kCodeLanes; ++lane) out[k + lane] = x[k + ElementInLane(lane)];
  }
}

}  // namespace millrace::engine::cpu
