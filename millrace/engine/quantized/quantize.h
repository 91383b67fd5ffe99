// Quantizes weights to codes of 4 or 8 bits, as bitsandbytes does; to E4M3, as compressed-tensors does. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::engine {

/// The number of elements that share a scale in NF4. The elements follow each other in C order. So a block may begin in
/// one row and end in the next.
inline constexpr std::size_t kNf4Block = 64;
/// The number of scales that share a scale of their own (double quantization).
inline constexpr std::size_t kScaleBlock = 256;

/// Quantizes consecutive elements of a matrix to NF4. Writes one scale for each block: the largest magnitude in the
/// block. Writes one code of 4 bits for each element. A byte has two codes, the first one in its upper half.
///
/// The code of an element x is the number of midpoints below x / scale. The midpoints lie between neighbouring values
/// of kNf4Map. So of two equally near values, the lower one is taken. Elements of a block of zeros get the code of
/// zero, as from bitsandbytes on a CPU.
///
/// A matrix may be passed in several calls.
/// REQUIRES: scales has ⌈elements / kNf4Block⌉ numbers, and codes has ⌈elements / 2⌉ bytes. The number of elements is a
/// multiple of kNf4Block, except in the last call for a matrix.
void QuantizeNf4(std::span<const float> elements, std::span<std::uint8_t> codes, std::span<float> scales);

/// The scales of NF4 after a second quantization. Their codes are those of DynamicMap(), in blocks of kScaleBlock.
struct QuantizedScales {
  float offset = 0;  ///< the mean of the scales, which is subtracted before the second quantization
  std::vector<std::uint8_t> codes;
  std::vector<float> block_scales;
};
/// Quantizes the scales of a matrix. Sums the mean in double. bitsandbytes sums in float32, in an order that depends on
/// the device. So its offset may differ in the last bits, and a code may differ where a scale lies next to a midpoint.
QuantizedScales QuantizeScales(std::span<const float> scales);

/// Quantizes a row to integers from -127 to 127: the nearest to 127 · x / scale, ties to even. Returns the scale: the
/// largest magnitude in the row. bitsandbytes calls the scale SCB.
float QuantizeInt8(std::span<const float> row, std::span<std::int8_t> codes);

/// Quantizes a row to E4M3: the nearest to x / scale, ties to even. Returns the scale: the largest magnitude in the
/// row, divided by 448; 1 for a row of zeros.
float QuantizeFp8(std::span<const float> row, std::span<std::uint8_t> codes);

}  // namespace millrace::engine
