// Division by a number that all threads of a kernel share. Includes nothing of CUDA.
#pragma once

#include <bit>
#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/arithmetic.h"

namespace millrace::engine::cuda {

struct Quotient {
  std::int64_t quotient, rest;
};

/// A divisor with what replaces the division of 32-bit numbers by a product (Granlund & Montgomery 1994, "Division by
/// invariant integers using multiplication"). GPUs have no instruction that divides integers.
class Divisor {
 public:
  Divisor() = default;
  /// `value`: above 0.
  explicit Divisor(std::int64_t value) : value_(value) {
    if (value > kMax) return;
    const auto divisor = static_cast<std::uint64_t>(value);
    shift_ = static_cast<std::uint32_t>(std::bit_width(divisor - 1));  // 2^shift is at least the divisor
    factor_ = static_cast<std::uint32_t>(((((std::uint64_t{1} << shift_) - divisor) << 32) / divisor) + 1);
  }
  MR_HOST_DEVICE std::int64_t value() const { return value_; }
  /// Returns i / value and i % value, for an i of at least 0.
  MR_HOST_DEVICE MR_INLINE Quotient Divide(std::int64_t i) const {
    if ((static_cast<std::uint64_t>(i) | static_cast<std::uint64_t>(value_)) >> 32 != 0) {
      const std::int64_t quotient = i / value_;
      return {quotient, i - quotient * value_};
    }
    const auto small = static_cast<std::uint32_t>(i);
    const auto product = static_cast<std::uint32_t>(static_cast<std::uint64_t>(small) * factor_ >> 32);
    const auto quotient = static_cast<std::uint32_t>((static_cast<std::uint64_t>(product) + small) >> shift_);
    return {quotient, small - quotient * static_cast<std::uint32_t>(value_)};
  }

 private:
  static constexpr std::int64_t kMax = 0xffffffff;

  std::int64_t value_ = 1;
  std::uint32_t factor_ = 1, shift_ = 0;
};

}  // namespace millrace::engine::cuda
