// The numbers that the codes of quantized weights stand for. Those of 4-bit NormalFloat and of the dynamic type are
// those of bitsandbytes, bit for bit.
#pragma once

#include <array>

namespace millrace::engine {

/// The 16 values of 4-bit NormalFloat, rising: quantiles of a normal distribution, scaled to [-1, 1] (Dettmers et al.
/// 2023, appendix E).
extern const std::array<float, 16> kNf4Map;

/// Returns the 256 values of E4M3, by code: sign, 4 bits of exponent, 3 of mantissa. The codes of NaN stand for 480 and
/// -480, the next numbers: kernels that shift bits make these of them. Weights have no such codes.
const std::array<float, 256>& E4m3Map();

/// Returns the 256 values of the signed 8-bit dynamic type, rising: decades from 1e-6 to 1, of which each has twice as
/// many values as the one below (Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning").
const std::array<float, 256>& DynamicMap();

}  // namespace millrace::engine
