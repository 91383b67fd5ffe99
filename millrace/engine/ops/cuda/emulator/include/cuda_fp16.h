// CUDA's float16, as far as kernels here use it: see ../README.md.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

struct __half {
  std::uint16_t bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half x) {
  const std::uint32_t exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023, sign = (x.bits & 0x8000U) << 16;
  if (exponent == 0) return (sign != 0 ? -0x1p-24F : 0x1p-24F) * static_cast<float>(mantissa);
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 127 - 15;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}
/// Rounds to the nearest, the even one of two.
inline __half __float2half_rn(float x) {
  const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16 & 0x8000);
  if (std::isnan(x)) return {0x7fff};
  const float magnitude = std::fabs(x);
  constexpr float kInfiniteFrom = 65520;
  if (magnitude >= kInfiniteFrom) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
  const int unit = std::max(exponent - 11, -24);
  // A mantissa that is rounded up to 2048 is that of the next exponent.
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  const std::uint32_t code = units < 1024 ? units : static_cast<std::uint32_t>(unit + 24) * 1024 + units;
  return {static_cast<std::uint16_t>(sign | code)};
}
