#include "millrace/data/order/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

/// Expects every item in one bin, no bin too full, and few bins.
TEST(BestFitDecreasing, HoldsItsPromises) {
  Random random(1);
  for (int round = 0; round < 400; ++round) {
    auto capacity = static_cast<std::uint32_t>(1 + random.Below(round % 2 ? 10 : 2000));
    std::vector<std::uint32_t> lengths(random.Below(300));
    for (auto& length : lengths) length = static_cast<std::uint32_t>(1 + random.Below(capacity));
    auto bins = BestFitDecreasing(lengths, capacity);
    std::vector<int> seen(lengths.size());
    for (const auto& bin : bins) {
      std::uint64_t sum = 0;
      for (std::uint32_t item : bin) {
        ++seen[item];
        sum += lengths[item];
      }
      ASSERT_FALSE(bin.empty());
      ASSERT_LE(sum, capacity);
      ASSERT_TRUE(std::ranges::is_sorted(bin));
    }
    ASSERT_EQ(std::ranges::count(seen, 1), std::ssize(seen));
    auto total = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    auto huge = std::ranges::count_if(lengths, [&](auto length) { return 2 * length > capacity; });
    // A lower bound of the bins. With twice as many, two half-empty bins would not have been joined.
    double least = std::max(static_cast<double>(total) / capacity, static_cast<double>(huge));
    ASSERT_LE(static_cast<double>(bins.size()), 2 * least + 1);
    ASSERT_EQ(BestFitDecreasing(lengths, capacity), bins);
  }
}

TEST(BestFitDecreasing, NeverChanges) {
  EXPECT_EQ(BestFitDecreasing(std::vector<std::uint32_t>{5, 7, 3, 2, 4, 2, 10, 5}, 10),
            (std::vector<std::vector<std::uint32_t>>{{6}, {1, 2}, {0, 7}, {3, 4, 5}}));
}

TEST(BestFitDecreasing, FillsRowsOfShortDocuments) {
  Random random(5);
  std::vector<std::uint32_t> lengths(2000);
  std::uint64_t total = 0;
  for (auto& length : lengths) total += length = static_cast<std::uint32_t>(20 + random.Below(600));
  EXPECT_LE(BestFitDecreasing(lengths, 2049).size(), total / 2049 * 101 / 100 + 1) << "at most 1 % is padding";
}

}  // namespace
}  // namespace millrace::data
