// Rounding to the 8-bit floating-point formats E4M3 and E5M2 (Micikevicius et al. 2022, "FP8 formats for deep
// learning"). Includes nothing of CUDA, so that tests compare the kernels with it on the CPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "millrace/engine/quantized/host_device.h"

namespace millrace::engine {

enum class Fp8Format {
  kE4m3,  ///< 4 bits of exponent, 3 of mantissa, no infinity: for values
  kE5m2,  ///< 5 bits of exponent, 2 of mantissa: for gradients, whose range is wider
};

constexpr int Fp8MantissaBits(Fp8Format format) { return format == Fp8Format::kE4m3 ? 3 : 2; }
constexpr int Fp8Bias(Fp8Format format) { return format == Fp8Format::kE4m3 ? 7 : 15; }
/// The largest finite number, and its code.
constexpr float Fp8Largest(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448.0F : 57344.0F; }
constexpr std::uint8_t Fp8LargestCode(Fp8Format format) { return format == Fp8Format::kE4m3 ? 0x7e : 0x7b; }
constexpr std::uint8_t kFp8Nan = 0x7f;

/// Returns the code of the nearest number, the even one of two. Numbers beyond the largest finite one become that, also
/// infinite ones. NaN becomes kFp8Nan.
MR_HOST_DEVICE inline std::uint8_t ToFp8(Fp8Format format, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const auto with_sign = [&](std::uint32_t code) { return static_cast<std::uint8_t>((bits >> 24 & 0x80) | code); };
  if (magnitude > 0x7f800000) return kFp8Nan;
  if (std::bit_cast<float>(magnitude) > Fp8Largest(format)) return with_sign(Fp8LargestCode(format));
  const int mantissa = Fp8MantissaBits(format);
  const auto least_normal = static_cast<std::uint32_t>(128 - Fp8Bias(format)) << 23;  // 2^(1 - bias)
  if (magnitude < least_normal) {
    // A multiple of 2^(1 - bias - mantissa bits). The next after the last one is the least normal number.
    const float units = std::bit_cast<float>(magnitude) *
                        std::bit_cast<float>(static_cast<std::uint32_t>(126 + Fp8Bias(format) + mantissa) << 23);
    return with_sign(static_cast<std::uint32_t>(rintf(units)));
  }
  const int dropped = 23 - mantissa;
  const std::uint32_t half = (1U << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
  const std::uint32_t rounded = (magnitude + half) >> dropped;
  return with_sign(rounded - (static_cast<std::uint32_t>(127 - Fp8Bias(format)) << mantissa));
}

/// Returns the codes of two numbers, that of `low` in the low byte. A GPU of compute capability 8.9 or above has an
/// instruction for it, which gives the codes of ToFp8().
template <Fp8Format kFormat>
MR_HOST_DEVICE inline std::uint16_t ToFp8Pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  if constexpr (kFormat == Fp8Format::kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
#else
  return static_cast<std::uint16_t>(ToFp8(kFormat, low) | ToFp8(kFormat, high) << 8);
#endif
}

/// Returns the number of a code.
inline float FromFp8(Fp8Format format, std::uint8_t code) {
  const int mantissa_bits = Fp8MantissaBits(format), exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if ((code & 0x7f) > Fp8LargestCode(format)) {
    return format == Fp8Format::kE5m2 && mantissa == 0 ? sign * INFINITY : NAN;
  }
  const int unit = 1 - Fp8Bias(format) - mantissa_bits;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), unit);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), unit + exponent - 1);
}

/// The factors of a tensor: `encode` maps it to the range of the format, `decode` back.
struct Fp8Scale {
  float encode = 1, decode = 1;
};
/// Returns those of a tensor whose largest absolute value is `largest`. If that is infinite or NaN, every product with
/// the tensor is NaN.
MR_HOST_DEVICE inline Fp8Scale Fp8ScaleOf(Fp8Format format, float largest) {
  if (largest == 0) return {};
  constexpr float kMax = 0x1p126F;  // its inverse is a normal number
  const float factor = Fp8Largest(format) / largest;
  const float encode = factor > kMax ? kMax : factor;
  return {encode, 1 / encode};
}

}  // namespace millrace::engine
