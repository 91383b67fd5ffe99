#include "millrace/checkpoint/format/half.h"

#include <bit>
#include <cmath>
#include <limits>

namespace millrace::checkpoint {
namespace {

constexpr int kTopExponent = 0x1f, kMantissaBits = 10, kLeastExponent = -14;
constexpr float kRoundsToInfinity = 65'520;  // halfway from the largest half, 65,504, to the next power of two

}  // namespace

float HalfToFloat(std::uint16_t bits) {
  const int exponent = bits >> kMantissaBits & kTopExponent, mantissa = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == kTopExponent) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), kLeastExponent - kMantissaBits)
                               : std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25));
}

float Bf16ToFloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t FloatToHalf(float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (size >= kRoundsToInfinity) return static_cast<std::uint16_t>(sign | 0x7c00);
  // The value as a multiple of the last place that its power of two has. The next power follows by itself.
  const int exponent = size < std::ldexp(1.0F, kLeastExponent) ? kLeastExponent : std::ilogb(size);
  const auto places = static_cast<int>(std::nearbyint(std::ldexp(size, kMantissaBits - exponent)));
  return static_cast<std::uint16_t>(sign + ((exponent - kLeastExponent) << kMantissaBits) + places);
}

std::uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace millrace::checkpoint
