// The least speed-up by which a measured way to make a product replaces the usual one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace millrace::engine::ops {

/// The least gain with which a choice replaces the usual way. Two runs of the same product differ by one or two per
/// cent on a quiet machine.
inline constexpr double kSpeedupThreshold = 0.04;

/// Returns which of the candidates is the fastest, if that is faster than `usual` by kSpeedupThreshold. Times are in
/// seconds.
inline std::optional<std::size_t> FasterThan(double usual, const std::vector<double>& candidates) {
  const auto fastest = std::ranges::min_element(candidates);
  if (fastest == candidates.end() || *fastest >= usual * (1 - kSpeedupThreshold)) return std::nullopt;
  return static_cast<std::size_t>(fastest - candidates.begin());
}

}  // namespace millrace::engine::ops
