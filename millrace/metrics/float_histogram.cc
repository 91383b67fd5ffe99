#include "millrace/metrics/float_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace millrace::metrics {
namespace {

constexpr int kMiddle = FloatHistogram::kBinsPerSign;
constexpr int kMantissaBits = 23, kExponentBias = 127, kBinBits = 3;
static_assert(1 << kBinBits == FloatHistogram::kBinsPerPower);
/// The bits of the least number that is not about 0, without those below a bin's.
constexpr std::uint32_t kFirstBin = static_cast<std::uint32_t>(FloatHistogram::kLeastExponent + kExponentBias)
                                    << kBinBits;

/// Returns the lower bound of bin `bin` of the positive numbers. The bound of the bin after the last is 2^24.
double BoundOf(int bin) {
  const int power = bin / FloatHistogram::kBinsPerPower, part = bin % FloatHistogram::kBinsPerPower;
  return std::ldexp(1.0 + part / double{FloatHistogram::kBinsPerPower}, FloatHistogram::kLeastExponent + power);
}

HistogramBucket BucketOf(int bin) {
  if (bin == kMiddle) return {.left = -BoundOf(0), .right = BoundOf(0)};
  if (bin > kMiddle) return {.left = BoundOf(bin - kMiddle - 1), .right = BoundOf(bin - kMiddle)};
  return {.left = -BoundOf(kMiddle - bin), .right = -BoundOf(kMiddle - bin - 1)};
}

}  // namespace

FloatHistogram::FloatHistogram()
    : least_(std::numeric_limits<double>::infinity()), greatest_(-std::numeric_limits<double>::infinity()) {}

void FloatHistogram::Add(std::span<const float> numbers) {
  for (const float number : numbers) {
    if (!std::isfinite(number)) {
      ++not_finite_;
      continue;
    }
    least_ = std::min<double>(least_, number);
    greatest_ = std::max<double>(greatest_, number);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::fabs(number)) >> (kMantissaBits - kBinBits);
    if (bits < kFirstBin) {
      ++counts_[kMiddle];
      continue;
    }
    const int bin = std::min(static_cast<int>(bits - kFirstBin), kBinsPerSign - 1) + 1;
    ++counts_[static_cast<std::size_t>(number < 0 ? kMiddle - bin : kMiddle + bin)];
  }
}

void FloatHistogram::Add(const FloatHistogram& other) {
  for (std::size_t bin = 0; bin < counts_.size(); ++bin) counts_[bin] += other.counts_[bin];
  not_finite_ += other.not_finite_;
  least_ = std::min(least_, other.least_);
  greatest_ = std::max(greatest_, other.greatest_);
}

std::vector<HistogramBucket> FloatHistogram::Buckets() const {
  std::vector<HistogramBucket> buckets;
  const auto is_counted = [](std::int64_t count) { return count > 0; };
  const auto first = std::ranges::find_if(counts_, is_counted);
  if (first == counts_.end()) return buckets;
  int last = kBins - 1;
  while (counts_[static_cast<std::size_t>(last)] == 0) --last;
  for (int bin = static_cast<int>(first - counts_.begin()); bin <= last; ++bin) {
    HistogramBucket bucket = BucketOf(bin);
    bucket.count = static_cast<std::uint64_t>(counts_[static_cast<std::size_t>(bin)]);
    if (bucket.count == 0 && buckets.back().count == 0) {
      buckets.back().right = bucket.right;
    } else {
      buckets.push_back(bucket);
    }
  }
  // The numbers themselves say where the outermost buckets end.
  buckets.front().left = least_;
  buckets.back().right = greatest_;
  return buckets;
}

}  // namespace millrace::metrics
