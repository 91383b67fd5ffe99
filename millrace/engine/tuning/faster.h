// When another way to make a product is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace millrace::engine::ops {

/// A choice must gain so much. Two runs of the same product differ by one or two per cent on a quiet machine.
inline constexpr double kLeastGain = 0.04;

/// Returns which of the candidates is the fastest, if that is faster than `usual` by kLeastGain. Times are in seconds.
inline std::optional<std::size_t> FasterThan(double usual, const std::vector<double>& candidates) {
  const auto fastest = std::ranges::min_element(candidates);
  if (fastest == candidates.end() || *fastest >= usual * (1 - kLeastGain)) return std::nullopt;
  return static_cast<std::size_t>(fastest - candidates.begin());
}

}  // namespace millrace::engine::ops
