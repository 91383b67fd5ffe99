// Stochastic rounding of float32 to bfloat16 (Gupta et al. 2015, "Deep Learning with Limited Numerical Precision"): up
// or down, with probabilities for which the mean is the value itself. So updates that are far smaller than the distance
// between two bfloat16 numbers add up, where rounding to nearest would lose each of them. For the CPU and for kernels
// of GPUs.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "millrace/base/hash/mix.h"
#include "millrace/engine/ops/cpu/simd.h"

namespace millrace::engine::cpu {

/// Returns the bits of a bfloat16. `random`: 16 random bits. A value that is a bfloat16 already stays as
/// it is, and so do infinities and NaNs.
MR_INLINE constexpr std::uint16_t RoundStochastically(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + random) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  const bool is_finite = (bits & 0x7f800000) != 0x7f800000;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>(is_finite ? rounded : is_nan ? nan : bits >> 16);
}

/// The number of an element that is rounded.
enum class RoundedNumber : std::uint64_t { kWeight, kMoment1, kMoment2 };

/// Returns the key of a number's random bits. `key`: of the tensor and the step.
MR_INLINE constexpr std::uint64_t RoundingKey(std::uint64_t key, RoundedNumber number) {
  return MixBits(key + static_cast<std::uint64_t>(number));
}
/// Returns 16 random bits for an element of a whole tensor, whose index has these two halves. The bits are a hash of 32
/// bits by multiplications and shifts, with the constants of Wellons' lowbias32. The hash takes in a half of the key
/// before each multiplication. It is a fifth of the work of a generator of 64 bits, and vectorises without one.
MR_INLINE constexpr std::uint32_t RoundingBits(std::uint64_t key, std::uint32_t low, std::uint32_t high) {
  std::uint32_t x = low ^ static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x ^= static_cast<std::uint32_t>(key >> 32) + high;
  x = (x ^ (x >> 15)) * 0x846ca68b;
  return x >> 16;
}

/// Numbers the elements of a slice as the whole tensor numbers them, so that a weight is rounded alike under any
/// division among ranks.
struct ElementNumbers {
  std::int64_t run = std::numeric_limits<std::int64_t>::max();  ///< the number of elements that are consecutive in both
  std::int64_t stride = 0;  ///< in the whole tensor, from the first element of a run to that of the next
  std::int64_t offset = 0;  ///< of the slice's first element
};

}  // namespace millrace::engine::cpu
