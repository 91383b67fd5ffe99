// CUDA's bfloat16, as far as kernels here use it: see ../README.md.
#pragma once

#include "millrace/engine/ops/cpu/simd.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return millrace::engine::cpu::ToFloat(static_cast<millrace::engine::cpu::Bf16>(x.bits));
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {static_cast<std::uint16_t>(millrace::engine::cpu::FromFloat<millrace::engine::cpu::Bf16>(x))};
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
