// Which steps retention keeps.
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/commit/retention.h"

namespace millrace::checkpoint {
namespace {

TEST(Retained, HoldsItsRules) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    Retention retention{.keep_last = static_cast<int>(1 + random.Below(5)), .keep_every = random.Below(10)};
    auto kept = Retained(committed, retention);
    EXPECT_TRUE(std::includes(committed.begin(), committed.end(), kept.begin(), kept.end()));
    EXPECT_EQ(Retained(kept, retention), kept) << "applying it again changes nothing";
    std::size_t rank = 0;
    for (auto step = committed.rbegin(); step != committed.rend(); ++step, ++rank) {
      bool wanted = rank < static_cast<std::size_t>(retention.keep_last) ||
                    (retention.keep_every > 0 && *step % retention.keep_every == 0);
      EXPECT_EQ(kept.contains(*step), wanted) << *step;
    }
  }
}

TEST(Retained, TheBestAreThoseOfTheDefinition) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    std::map<std::uint64_t, double> metric;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    for (std::uint64_t step : committed)
      if (random.Below(4)) metric[step] = static_cast<double>(random.Below(10));
    const Retention retention{
        .keep_last = 1, .keep_best = static_cast<int>(random.Below(5)), .greatest = random.Below(2) == 1};
    const auto kept = Retained(committed, retention, metric);
    for (const auto& [step, value] : metric) {
      int better = 0;
      for (const auto& [other, theirs] : metric) {
        const bool beats = retention.greatest ? theirs > value : theirs < value;
        better += beats || (theirs == value && other > step);
      }
      EXPECT_EQ(kept.contains(step), better < retention.keep_best || step == *committed.rbegin()) << step;
    }
    std::map<std::uint64_t, double> left;
    for (std::uint64_t step : kept)
      if (metric.contains(step)) left[step] = metric[step];
    EXPECT_EQ(Retained(kept, retention, left), kept) << "applying it again changes nothing";
  }
}

}  // namespace
}  // namespace millrace::checkpoint
