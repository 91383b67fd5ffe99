#include "millrace/data/order/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

/// A simple implementation: sorts all samples by (time, source), with exact times.
std::vector<SourceSample> Sorted(const std::vector<std::uint64_t>& counts) {
  std::vector<SourceSample> order;
  for (std::uint32_t s = 0; s < counts.size(); ++s) {
    for (std::uint64_t j = 0; j < counts[s]; ++j) order.push_back({s, j});
  }
  std::ranges::sort(order, [&](const SourceSample& a, const SourceSample& b) {
    std::uint64_t left = (2 * a.number + 1) * counts[b.source], right = (2 * b.number + 1) * counts[a.source];
    return left != right ? left < right : a.source < b.source;
  });
  return order;
}

double Bound(double share, std::size_t sources) {
  return (1 - share) / 2 + share * (static_cast<double>(sources) - 1) / 2 + 1e-9;
}

TEST(Blend, IsTheMergeByTime) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> counts(1 + random.Below(6));
    for (auto& count : counts) count = random.Below(round % 3 == 0 ? 4 : 60);
    counts[random.Below(counts.size())] += 1;
    Blend blend(counts);
    auto expected = Sorted(counts);
    ASSERT_EQ(blend.samples(), expected.size());
    for (std::uint64_t i = 0; i < expected.size(); ++i) ASSERT_EQ(blend.At(i), expected[i]) << round << " " << i;
  }
}

TEST(Blend, SharesAreRightAtEveryPrefix) {
  for (const std::vector<std::uint64_t>& counts : {std::vector<std::uint64_t>{500, 500},
                                                   {900, 100},
                                                   {9999, 1},
                                                   {700, 200, 100},
                                                   {1, 1, 1, 1, 996},
                                                   {997, 31, 13, 7}}) {
    Blend blend(counts);
    std::vector<std::uint64_t> seen(counts.size());
    for (std::uint64_t n = 1; n <= blend.samples(); ++n) {
      ++seen[blend.At(n - 1).source];
      for (std::size_t s = 0; s < counts.size(); ++s) {
        double share = static_cast<double>(counts[s]) / static_cast<double>(blend.samples());
        ASSERT_LE(std::abs(static_cast<double>(seen[s]) - static_cast<double>(n) * share), Bound(share, counts.size()))
            << "source " << s << " of the first " << n;
      }
    }
    EXPECT_EQ(seen, counts);
  }
}

/// Finding any sample of 10^10 takes as long as finding one of ten.
TEST(Blend, TenThousandMillionSamplesStartAnywhere) {
  std::vector<std::uint64_t> counts = {6'000'000'000, 3'999'000'000, 999'999, 1};
  Blend blend(counts);
  ASSERT_EQ(blend.samples(), 10'000'000'000u);
  Random random(3);
  for (int probe = 0; probe < 200; ++probe) {
    // In any range, the numbers of each source are consecutive.
    std::uint64_t begin = random.Below(blend.samples() - 100);
    std::vector<std::uint64_t> next(counts.size(), UINT64_MAX);
    for (std::uint64_t i = begin; i < begin + 100; ++i) {
      SourceSample pick = blend.At(i);
      if (next[pick.source] != UINT64_MAX) {
        ASSERT_EQ(pick.number, next[pick.source]);
      }
      next[pick.source] = pick.number + 1;
      double share = static_cast<double>(counts[pick.source]) / 1e10;
      ASSERT_NEAR(static_cast<double>(pick.number), static_cast<double>(i) * share, Bound(share, 4) + 1e-3);
    }
  }
}

TEST(Blend, NeverChanges) {
  Blend blend({5, 3, 2});
  std::vector<std::uint32_t> sources;
  for (std::uint64_t i = 0; i < 10; ++i) sources.push_back(blend.At(i).source);
  EXPECT_EQ(sources, (std::vector<std::uint32_t>{0, 1, 2, 0, 0, 1, 0, 2, 1, 0}));
}

}  // namespace
}  // namespace millrace::data
