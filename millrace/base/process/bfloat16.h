// bfloat16 in vector loops (simd.h).
#pragma once

#include <bit>
#include <cstdint>

#include "millrace/base/process/simd.h"

namespace millrace {

/// bfloat16 in memory; arithmetic is in float. An enumeration, because loops over a struct do not vectorise.
enum class Bf16 : std::uint16_t {};

MR_INLINE float ToFloat(float value) { return value; }
MR_INLINE float ToFloat(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

template <class T>
MR_INLINE T FromFloat(float value);
template <>
MR_INLINE float FromFloat<float>(float value) {
  return value;
}
/// Rounds to nearest, ties to even; a NaN stays one.
template <>
MR_INLINE Bf16 FromFloat<Bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<Bf16>(value != value ? 0x7fc0 : rounded);
}

}  // namespace millrace
