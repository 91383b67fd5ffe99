#include "millrace/checkpoint/gguf/rope_factors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::checkpoint {
namespace {

/// The largest relative difference between factors that count as equal. torch computes them in float32, whose rounding
/// is blown up to 1e-5 where a factor of 32 is almost reached. Other parameters differ by 1e-4 and more.
constexpr double kTolerance = 3e-5;

double Wavelength(std::size_t angle, std::size_t angles, double base) {
  return 2 * std::numbers::pi * std::pow(base, static_cast<double>(angle) / static_cast<double>(angles));
}

bool Gives(const Llama3Scaling& scaling, std::span<const float> factors, double base) {
  const std::vector<float> made = RopeFactorsOf(scaling, base, static_cast<std::int64_t>(2 * factors.size()));
  return std::ranges::equal(made, factors, [](float a, float b) { return std::abs(a - b) <= kTolerance * b; });
}

}  // namespace

std::vector<float> RopeFactorsOf(const Llama3Scaling& scaling, double base, std::int64_t head_dim) {
  const double longest = scaling.original_max_position_embeddings / scaling.low_freq_factor;
  const double shortest = scaling.original_max_position_embeddings / scaling.high_freq_factor;
  std::vector<float> factors(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double wavelength = Wavelength(i, factors.size(), base);
    double scaled = scaling.factor;
    if (wavelength < shortest) {
      scaled = 1;
    } else if (wavelength <= longest) {
      const double smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      scaled = 1 / ((1 - smooth) / scaling.factor + smooth);
    }
    factors[i] = static_cast<float>(scaled);
  }
  return factors;
}

std::optional<Llama3Scaling> FindLlama3Scaling(std::span<const float> factors, double base) {
  if (factors.empty()) return std::nullopt;
  const double most = std::ranges::max(factors);
  if (!(most > 1) || !std::isfinite(most)) return std::nullopt;
  Llama3Scaling scaling{.factor = most};
  if (Gives(scaling, factors, base)) return scaling;
  // Between the plateaus 1 / f is linear in the frequency. Two angles tell the line, and where it meets the plateaus.
  std::vector<std::size_t> between;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] > 1 + kTolerance && factors[i] < most * (1 - kTolerance)) between.push_back(i);
  }
  if (between.size() < 2) return std::nullopt;
  const auto smooth = [&](std::size_t i) { return (1 / static_cast<double>(factors[i]) - 1 / most) / (1 - 1 / most); };
  const auto frequency = [&](std::size_t i) { return 1 / Wavelength(i, factors.size(), base); };
  const std::size_t a = between.front(), b = between.back();
  const double slope = (smooth(a) - smooth(b)) / (frequency(a) - frequency(b));
  const double begin = frequency(a) - smooth(a) / slope, end = begin + 1 / slope;  // where it is 0, and where it is 1
  scaling.original_max_position_embeddings = std::round(1 / begin);
  for (const double high : {std::round(end / begin), std::round(1000 * end / begin) / 1000, end / begin}) {
    scaling.high_freq_factor = high;  // people write whole numbers, or short ones
    if (scaling.high_freq_factor > 1 && Gives(scaling, factors, base)) return scaling;
  }
  return std::nullopt;
}

}  // namespace millrace::checkpoint
