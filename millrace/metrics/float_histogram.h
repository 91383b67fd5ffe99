// Counts numbers by their size, so that histograms of parts add up exactly to that of the whole.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::metrics {

/// Numbers from `left` up to, but not including, `right`; the last bucket of a histogram includes it.
struct HistogramBucket {
  double left = 0, right = 0;
  std::uint64_t count = 0;
};

/// Counts float32 numbers in bins whose bounds never change: 8 for each power of two from 2^-40 to 2^24, for each sign,
/// and one for the numbers nearer to 0. So a number's bin is some of its bits, and ranks add their counts. Larger
/// numbers count in the outermost bins, whose bounds then are the least and the greatest number.
class FloatHistogram {
 public:
  static constexpr int kLeastExponent = -40, kMaxExponent = 24, kBinsPerPower = 8;
  static constexpr int kBinsPerSign = (kMaxExponent - kLeastExponent) * kBinsPerPower;
  /// Bins in the order of their numbers: negative ones, about 0, positive ones.
  static constexpr int kBins = 2 * kBinsPerSign + 1;

  FloatHistogram();

  /// Counts numbers. Those that are not finite are counted apart.
  void Add(std::span<const float> numbers);
  /// Adds what another one has counted.
  void Add(const FloatHistogram& other);

  std::array<std::int64_t, kBins>& counts() { return counts_; }
  std::int64_t& not_finite() { return not_finite_; }
  /// The least and the greatest finite number. Infinities if there is none.
  double& least() { return least_; }
  double& greatest() { return greatest_; }

  /// Returns the buckets from the least number to the greatest, without gaps; empty bins beside each other are one.
  /// Nothing if no number was counted.
  std::vector<HistogramBucket> Buckets() const;

 private:
  std::array<std::int64_t, kBins> counts_{};
  std::int64_t not_finite_ = 0;
  double least_, greatest_;
};

}  // namespace millrace::metrics
