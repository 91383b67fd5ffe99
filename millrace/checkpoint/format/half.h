// The 16-bit floating-point numbers of tensors: IEEE 754's binary16 (F16), and bfloat16 (BF16).
#pragma once

#include <cstdint>

namespace millrace::checkpoint {

/// Exact. A NaN stays one.
float HalfToFloat(std::uint16_t bits);
float Bf16ToFloat(std::uint16_t bits);

/// Round to nearest, ties to even. Too large values become infinite. A NaN stays one.
std::uint16_t FloatToHalf(float value);
std::uint16_t FloatToBf16(float value);

}  // namespace millrace::checkpoint
