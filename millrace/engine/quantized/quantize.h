// Turns weights into codes, as bitsandbytes and (to E4M3) compressed-tensors do. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::engine {

/// Elements of a matrix, in C order, that share a scale of NF4. A block may begin in one row and end in the next.
inline constexpr std::size_t kNf4Block = 64;
/// Scales that share a scale of their own: double quantization.
inline constexpr std::size_t kScaleBlock = 256;

/// Quantizes consecutive elements to NF4. Writes a scale for each block, the largest magnitude in it, and a code for
/// each element, two in a byte with the first one in the high half. An element x gets the number of midpoints between
/// values of kNf4Map that are smaller than x / scale, so a tie takes the lower value. Elements of a block of zeros get
/// the code of zero, as from bitsandbytes on a CPU. A matrix may be passed in several calls.
/// REQUIRES: scales has ⌈elements / kNf4Block⌉ numbers, codes ⌈elements / 2⌉ bytes. The number of elements is a
/// multiple of kNf4Block, except in the last call for a matrix.
void QuantizeNf4(std::span<const float> elements, std::span<std::uint8_t> codes, std::span<float> scales);

/// Scales of NF4, quantized once more: codes of DynamicMap(), in blocks of kScaleBlock.
struct QuantizedScales {
  float offset = 0;  ///< the mean of the scales, without which they are quantized
  std::vector<std::uint8_t> codes;
  std::vector<float> block_scales;
};
/// The mean is summed in double. bitsandbytes sums in float32, in an order that depends on the device, so its offset
/// may differ in the last bits, and codes next to a midpoint with it.
QuantizedScales QuantizeScales(std::span<const float> scales);

/// Quantizes a row to integers -127 … 127, the nearest to 127 · x / scale, ties to even. Returns the scale: the largest
/// magnitude in the row. bitsandbytes calls it SCB.
float QuantizeInt8(std::span<const float> row, std::span<std::int8_t> codes);

/// Quantizes a row to E4M3: the nearest to x / scale, ties to even. Returns the scale: the largest magnitude in the
/// row, divided by 448; 1 for a row of zeros.
float QuantizeFp8(std::span<const float> row, std::span<std::uint8_t> codes);

}  // namespace millrace::engine
