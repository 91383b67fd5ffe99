#include "millrace/engine/quantized/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/engine/quantized/code_maps.h"
#include "millrace/engine/quantized/fp8_numbers.h"

namespace millrace::engine {
namespace {

/// What bitsandbytes takes in place of a scale of 0.
constexpr float kLeastScale = 1e-38F;

float LargestMagnitude(std::span<const float> elements) {
  float most = 0;
  for (const float x : elements) most = std::max(most, std::abs(x));
  return most;
}

/// Returns the midpoints between neighbours.
template <std::size_t kValues>
std::array<float, kValues - 1> Midpoints(const std::array<float, kValues>& values) {
  std::array<float, kValues - 1> midpoints{};
  for (std::size_t i = 0; i + 1 < kValues; ++i) midpoints[i] = (values[i] + values[i + 1]) / 2;
  return midpoints;
}

/// Counts, for each element of a block, the midpoints below it.
void CountMidpoints(std::span<const float> scaled, std::span<std::uint32_t> counts) {
  static const std::array<float, 15> kMidpoints = Midpoints(kNf4Map);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    std::uint32_t below = 0;
    for (const float midpoint : kMidpoints) below += scaled[i] > midpoint ? 1 : 0;
    counts[i] = below;
  }
}

}  // namespace

void QuantizeNf4(std::span<const float> elements, std::span<std::uint8_t> codes, std::span<float> scales) {
  std::array<float, kNf4Block> scaled{};
  std::array<std::uint32_t, kNf4Block> counts{};
  for (std::size_t begin = 0; begin < elements.size(); begin += kNf4Block) {
    const std::span<const float> block = elements.subspan(begin, std::min(kNf4Block, elements.size() - begin));
    float scale = LargestMagnitude(block);
    if (block.size() < kNf4Block) scale = std::max(scale, kLeastScale);  // bitsandbytes stores it so
    scales[begin / kNf4Block] = scale;
    const float inverse = 1 / std::max(scale, kLeastScale);
    for (std::size_t i = 0; i < block.size(); ++i) {
      // A product of rounded numbers may be a little more than 1. bitsandbytes divides in the last block.
      const float x = block.size() < kNf4Block ? block[i] / scale : block[i] * inverse;
      scaled[i] = std::clamp(x, -1.0F, 1.0F);
    }
    for (std::size_t i = block.size(); i < kNf4Block; ++i) scaled[i] = 0;  // fills the last byte
    CountMidpoints(scaled, counts);
    std::uint8_t* out = codes.data() + begin / 2;
    for (std::size_t i = 0; i < block.size(); i += 2) {
      out[i / 2] = static_cast<std::uint8_t>(counts[i] << 4 | counts[i + 1]);
    }
  }
}

QuantizedScales QuantizeScales(std::span<const float> scales) {
  static const std::array<float, 255> midpoints = Midpoints(DynamicMap());
  QuantizedScales result;
  double sum = 0;
  for (const float scale : scales) sum += scale;
  if (!scales.empty()) result.offset = static_cast<float>(sum / static_cast<double>(scales.size()));
  for (std::size_t begin = 0; begin < scales.size(); begin += kScaleBlock) {
    const std::span<const float> block = scales.subspan(begin, std::min(kScaleBlock, scales.size() - begin));
    float most = 0;
    for (const float scale : block) most = std::max(most, std::abs(scale - result.offset));
    result.block_scales.push_back(most);
    const float inverse = 1 / std::max(most, kLeastScale);
    for (const float scale : block) {
      const float x = std::clamp((scale - result.offset) * inverse, -1.0F, 1.0F);
      result.codes.push_back(static_cast<std::uint8_t>(std::ranges::lower_bound(midpoints, x) - midpoints.begin()));
    }
  }
  return result;
}

float QuantizeInt8(std::span<const float> row, std::span<std::int8_t> codes) {
  const float scale = LargestMagnitude(row);
  const float factor = scale > 0 ? 127 / scale : 0;
  for (std::size_t i = 0; i < row.size(); ++i) codes[i] = static_cast<std::int8_t>(std::nearbyint(row[i] * factor));
  return scale;
}

float QuantizeFp8(std::span<const float> row, std::span<std::uint8_t> codes) {
  const float most = LargestMagnitude(row);
  const float scale = most > 0 ? most / Fp8Largest(Fp8Format::kE4m3) : 1;
  for (std::size_t i = 0; i < row.size(); ++i) codes[i] = ToFp8(Fp8Format::kE4m3, row[i] / scale);
  return scale;
}

}  // namespace millrace::engine
