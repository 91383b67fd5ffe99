#include "millrace/metrics/float_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace millrace::metrics {
namespace {

TEST(FloatHistogram, CountsEachNumberInABucketThatHasIt) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.01f, 0.02f);
  std::vector<float> numbers = {0, -0.0f, 1e-30f, -1e-30f, 1, -1, 0.125f};
  for (int i = 0; i < 5000; ++i) numbers.push_back(normal(random));
  FloatHistogram histogram;
  histogram.Add(numbers);
  const std::vector<HistogramBucket> buckets = histogram.Buckets();
  ASSERT_FALSE(buckets.empty());
  EXPECT_EQ(buckets.front().left, *std::ranges::min_element(numbers));
  EXPECT_EQ(buckets.back().right, *std::ranges::max_element(numbers));
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const HistogramBucket& bucket = buckets[i];
    if (i > 0) {
      EXPECT_EQ(bucket.left, buckets[i - 1].right);
    }
    // Negative numbers lie above the left bound and up to the right one.
    const auto inside = [&](double x) {
      if (i == 0 || i + 1 == buckets.size()) return bucket.left <= x && x <= bucket.right;
      return bucket.right <= 0 ? bucket.left < x && x <= bucket.right : bucket.left <= x && x < bucket.right;
    };
    if (i == 0 || i + 1 == buckets.size()) continue;  // they share bounds with their neighbours
    EXPECT_EQ(bucket.count, std::ranges::count_if(numbers, inside)) << bucket.left << " to " << bucket.right;
  }
  std::uint64_t all = 0;
  for (const HistogramBucket& bucket : buckets) all += bucket.count;
  EXPECT_EQ(all, numbers.size());
}

TEST(FloatHistogram, OfPartsAddsUpToThatOfTheWhole) {
  std::vector<float> numbers;
  for (int i = -300; i < 500; ++i) numbers.push_back(static_cast<float>(i) * 0.37f);
  FloatHistogram whole, first, second;
  whole.Add(numbers);
  first.Add(std::span(numbers).first(123));
  second.Add(std::span(numbers).subspan(123));
  first.Add(second);
  EXPECT_EQ(first.counts(), whole.counts());
  EXPECT_EQ(first.least(), whole.least());
  EXPECT_EQ(first.greatest(), whole.greatest());
}

TEST(FloatHistogram, TakesNumbersBeyondItsBins) {
  const float most = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  FloatHistogram histogram;
  histogram.Add(std::vector<float>{-most, most, 3e7f, infinity, std::nanf("")});
  EXPECT_EQ(histogram.not_finite(), 2);
  const auto buckets = histogram.Buckets();
  EXPECT_EQ(buckets.front().left, -most);
  EXPECT_EQ(buckets.front().count, 1);
  EXPECT_EQ(buckets.back().right, most);
  EXPECT_EQ(buckets.back().count, 2);
}

TEST(FloatHistogram, OfOneValueIsOneBucket) {
  FloatHistogram histogram;
  EXPECT_TRUE(histogram.Buckets().empty());
  histogram.Add(std::vector<float>(10, 0.5f));
  const auto buckets = histogram.Buckets();
  ASSERT_EQ(buckets.size(), 1);
  EXPECT_EQ(buckets[0].left, 0.5);
  EXPECT_EQ(buckets[0].right, 0.5);
  EXPECT_EQ(buckets[0].count, 10);
}

}  // namespace
}  // namespace millrace::metrics
