#include "millrace/engine/ops/cpu/coded_product_tiles.h"
#include "millrace/engine/quantized/code_maps.h"

namespace millrace::engine::cpu {

#if defined(__x86_64__)
void Int8ProductInAvx512(const CodedProduct<Int8Columns>& op);  // coded_product_avx512.cc
void Fp8ProductInAvx512(const CodedProduct<Fp8Columns>& op);
void Nf4ProductInAvx512(const CodedProduct<Nf4Columns>& op);
void Int8ProductInAvx2(const CodedProduct<Int8Columns>& op);  // coded_product_avx2.cc
void Fp8ProductInAvx2(const CodedProduct<Fp8Columns>& op);
void Nf4ProductInAvx2(const CodedProduct<Nf4Columns>& op);
#endif

namespace {

/// For every other processor.
struct WidenedOneByOne {
  static constexpr bool kHalved = true;
  MR_INLINE static void Widen(const std::int8_t* from, HalfLanes& to) {
    for (int lane = 0; lane < 8; ++lane) to[lane] = from[lane];
  }
};
struct Fp8WidenedOneByOne {
  static constexpr bool kHalved = true;
  MR_INLINE static void Widen(const std::uint8_t* from, HalfLanes& to) {
    for (int lane = 0; lane < 8; ++lane) to[lane] = E4m3Map()[from[lane]] / kFp8InHalf;
  }
};
class LookedUpOneByOne {
 public:
  static constexpr bool kHalved = true;
  static constexpr std::int64_t kBatch = kCodeLanes;

  explicit LookedUpOneByOne(const float* map) : map_(map) {}
  MR_INLINE void LookUp(const std::uint8_t* bytes, HalfLanes* to) const {
    std::uint32_t words[2];
    std::memcpy(words, bytes, sizeof words);
    for (std::int64_t lane = 0; lane < kCodeLanes; ++lane) {
      to[lane / 8][lane % 8] = map_[words[lane % 2] >> (lane / 2 * 4) & 15];
    }
  }
  MR_INLINE void LookUpBatch(const std::uint8_t* bytes, HalfLanes* to) const { LookUp(bytes, to); }

 private:
  const float* map_;
};

enum class Registers { kAvx512, kAvx2, kOther };
Registers RegistersHere() {
#if defined(__x86_64__)
  static const Registers registers = __builtin_cpu_supports("x86-64-v4") != 0   ? Registers::kAvx512
                                     : __builtin_cpu_supports("x86-64-v3") != 0 ? Registers::kAvx2
                                                                                : Registers::kOther;
  return registers;
#else
  return Registers::kOther;
#endif
}

}  // namespace

template <>
void CodedProduct<Int8Columns>::Run() const {
#if defined(__x86_64__)
  if (RegistersHere() == Registers::kAvx512) return Int8ProductInAvx512(*this);
  if (RegistersHere() == Registers::kAvx2) return Int8ProductInAvx2(*this);
#endif
  CodedProductBody<ByteTile<Int8Columns, WidenedOneByOne>>(*this);
}
template <>
void CodedProduct<Fp8Columns>::Run() const {
#if defined(__x86_64__)
  if (RegistersHere() == Registers::kAvx512) return Fp8ProductInAvx512(*this);
  if (RegistersHere() == Registers::kAvx2) return Fp8ProductInAvx2(*this);
#endif
  CodedProductBody<ByteTile<Fp8Columns, Fp8WidenedOneByOne>>(*this);
}
template <>
void CodedProduct<Nf4Columns>::Run() const {
#if defined(__x86_64__)
  if (RegistersHere() == Registers::kAvx512) return Nf4ProductInAvx512(*this);
  if (RegistersHere() == Registers::kAvx2) return Nf4ProductInAvx2(*this);
#endif
  CodedProductBody<Nf4Tile<LookedUpOneByOne>>(*this);
}

void OrderForNf4(const float* x, std::int64_t count, float* out) {
  for (std::int64_t k = 0; k < count; k += kCodeLanes) {
    for (std::int64_t lane = 0; lane < kCodeLanes; ++lane) out[k + lane] = x[k + ElementInLane(lane)];
  }
}

}  // namespace millrace::engine::cpu
