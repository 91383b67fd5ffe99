// Numbers of vector loops (base/process/simd.h): bfloat16 and the exponential function.
#pragma once

#include <bit>
#include <cstdint>

#include "millrace/base/process/bfloat16.h"
#include "millrace/base/process/simd.h"

namespace millrace::engine::cpu {

using millrace::Bf16;
using millrace::FromFloat;
using millrace::ToFloat;

/// Returns whether a register of this processor holds 16 float32, and MR_SIMD_V4 may run.
MR_INLINE bool HasWideRegisters() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("x86-64-v4") != 0;
#else
  return false;
#endif
}

/// e^x to 2 units in the last place. Below -87.3 it stays at the smallest normal number, above 88.3 at the largest
/// reachable one; a NaN stays one. Range reduction by ln 2 in two parts, then the degree-6 minimax polynomial of
/// Cephes.
MR_INLINE float Exp(float x) {
  x = x < -87.3F ? -87.3F : x;
  x = x > 88.3F ? 88.3F : x;
  constexpr float kShift = 12582912.0F;  // 1.5 · 2^23: adding it leaves the rounded integer in the low bits
  const float shifted = x * 1.44269504088896341F + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;  // the shift's own bits fall off the top
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

/// softcap · tanh(x / softcap), as 2 · sigmoid(2x / softcap) - 1. The error is about 1e-7 · softcap.
MR_INLINE float Capped(float x, float softcap) { return softcap * (2 / (1 + Exp(-2 * x / softcap)) - 1); }

}  // namespace millrace::engine::cpu
