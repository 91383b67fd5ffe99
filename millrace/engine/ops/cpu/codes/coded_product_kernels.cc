#include "millrace/engine/ops/cpu/codes/coded_product_tiles.h"

namespace millrace::engine::cpu {

#if defined(__x86_64__)
void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op);  // coded_product_avx512.cc
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op);
#endif

namespace {

using CodeHalves = std::int16_t __attribute__((vector_size(32)));

/// In three steps: g++ 12 does not vectorise the conversion of bytes to words of four.
struct WideningInSteps {
  MR_INLINE static void Widen(const std::int8_t* from, SumLanes& to) {
    CodeBytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    const CodeHalves halves = __builtin_convertvector(bytes, CodeHalves);
    to = __builtin_convertvector(__builtin_convertvector(halves, CodeWords), SumLanes);
  }
};

/// Looks a number up for each lane by the low 4 bits, in two registers of 8 numbers.
struct LookUpIn8 {
  MR_INLINE static void LookUp(const float* map, const CodeWords& codes, SumLanes& to) {
#if defined(__GNUC__) && !defined(__clang__)
    using HalfLanes = float __attribute__((vector_size(32)));
    using HalfCodes = std::int32_t __attribute__((vector_size(32)));
    HalfLanes low, high;
    std::memcpy(&low, map, sizeof low);
    std::memcpy(&high, map + 8, sizeof high);
    const HalfCodes first = __builtin_shufflevector(codes, codes, 0, 1, 2, 3, 4, 5, 6, 7);
    const HalfCodes second = __builtin_shufflevector(codes, codes, 8, 9, 10, 11, 12, 13, 14, 15);
    const HalfLanes a = __builtin_shuffle(low, high, first), b = __builtin_shuffle(low, high, second);
    to = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    for (int lane = 0; lane < kCodeLanes; ++lane) to[lane] = map[codes[lane] & 15];
#endif
  }
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

MR_SIMD_TO_V3 static void Int8Product(const CodedProduct<Int8Columns>& op) {
  CodedProductBody<Int8Tile<WideningInSteps>>(op);
}
MR_SIMD_TO_V3 static void Nf4Product(const CodedProduct<Nf4Columns>& op) { CodedProductBody<Nf4Tile<LookUpIn8>>(op); }

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
