#include "millrace/engine/families/llama/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/engine/ops/rotary.h"

namespace millrace::engine {
namespace {

using Method = RopeScaling::Method;

/// A wave shorter than original/high keeps its frequency, one longer than original/low is slowed by the factor, and
/// those between are interpolated.
float Llama3Frequency(float frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  const auto factor = static_cast<float>(scaling.factor);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
}

/// Returns the dimension whose pair turns `rotations` times within the original positions.
double YarnDimension(double rotations, const RopeScaling& scaling, const RopeSizes& sizes) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  return static_cast<double>(sizes.head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(sizes.theta));
}

/// Pairs before `low` keep their frequency, those behind `high` are slowed by the factor, with a ramp between them.
void SlowAsYarn(std::vector<float>& frequencies, const RopeScaling& scaling, const RopeSizes& sizes) {
  double low = YarnDimension(scaling.beta_fast, scaling, sizes);
  double high = YarnDimension(scaling.beta_slow, scaling, sizes);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(sizes.head_dim - 1));
  if (low == high) high += 0.001;  // transformers' guard against a division by zero
  const auto factor = static_cast<float>(scaling.factor);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto slowed = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    frequencies[i] = frequencies[i] / factor * slowed + frequencies[i] * (1 - slowed);
  }
}

/// The base at which the slowest pair turns as far over `length` positions as it did over max_positions / factor.
double DynamicTheta(const RopeScaling& scaling, const RopeSizes& sizes, std::int64_t length) {
  const auto dim = static_cast<double>(sizes.head_dim);
  const double stretched = static_cast<double>(std::max(length, sizes.max_positions));
  const double growth = scaling.factor * stretched / static_cast<double>(sizes.max_positions) - (scaling.factor - 1);
  return sizes.theta * std::pow(growth, dim / (dim - 2));
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeScaling& scaling, const RopeSizes& sizes, std::int64_t length) {
  if (scaling.method == Method::kDynamic) {
    return ops::RotaryFrequencies(sizes.head_dim, DynamicTheta(scaling, sizes, length));
  }
  std::vector<float> frequencies = ops::RotaryFrequencies(sizes.head_dim, sizes.theta);
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.method == Method::kLinear) {
    for (float& frequency : frequencies) frequency /= factor;
  } else if (scaling.method == Method::kLlama3) {
    for (float& frequency : frequencies) frequency = Llama3Frequency(frequency, scaling);
  } else if (scaling.method == Method::kYarn) {
    SlowAsYarn(frequencies, scaling, sizes);
  } else if (scaling.method == Method::kLongRope) {
    const bool is_long = length > scaling.original_max_positions;
    const std::vector<double>& factors = is_long ? scaling.long_factors : scaling.short_factors;
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<float>(factors[i]);
  }
  return frequencies;
}

RotaryPositions MakeRotaryPositions(const RopeScaling& scaling, const RopeSizes& sizes, ops::RotaryPairs pairs,
                                    at::Device device) {
  const auto table = [scaling, sizes, pairs, device](std::int64_t length) {
    return ops::RotaryTable::Make(length, RopeFrequencies(scaling, sizes, length), pairs, device,
                                  scaling.attention_factor);
  };
  const std::int64_t most = RopePositions(scaling, sizes.max_positions);
  if (scaling.method == Method::kDynamic) {
    return {most, [most = sizes.max_positions](std::int64_t length) { return std::max(length, most); }, table};
  }
  if (scaling.method == Method::kLongRope) {
    const std::int64_t shortest = std::min(scaling.original_max_positions, most);
    return {most, [=](std::int64_t length) { return length > shortest ? most : shortest; }, table};
  }
  return RotaryPositions(table(most));
}

}  // namespace millrace::engine
