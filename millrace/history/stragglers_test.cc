#include "millrace/history/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::history {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Ranks with these own times; all wait until the slowest is done.
std::vector<RankFigures> Ranks(std::initializer_list<double> own) {
  std::vector<RankFigures> ranks;
  for (const double time : own) ranks.push_back({.times = {.step = std::max(own), .comm_wait = std::max(own) - time}});
  return ranks;
}

TEST(StragglersTest, SlownessComparesWithTheMedianOfTheOthers) {
  EXPECT_THAT(FindSlowness(Ranks({1, 1, 3})), ElementsAre(0.5, 0.5, 3));
  EXPECT_THAT(FindSlowness(Ranks({2, 1})), ElementsAre(2, 0.5));
  EXPECT_THAT(FindSlowness(Ranks({5})), ElementsAre(1));
}

TEST(StragglersTest, StagesOfAPipelineAreNotPeers) {
  auto ranks = Ranks({1, 1, 4, 4});
  ranks[2].stage = ranks[3].stage = 1;
  EXPECT_THAT(FindSlowness(ranks), ElementsAre(1, 1, 1, 1));
}

TEST(StragglersTest, ARankIsNamedOnceAfterManySteps) {
  StragglerDetector detector;
  std::vector<std::vector<int>> found;
  for (int report = 0; report < 6; ++report) {
    auto ranks = Ranks({1, 1, 2, 1});
    found.push_back(detector.Observe(ranks, 5));
    EXPECT_EQ(ranks[2].straggles, report >= 3) << report;
    EXPECT_FALSE(ranks[0].straggles);
  }
  EXPECT_THAT(found, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), ElementsAre(2), IsEmpty(), IsEmpty()));
}

TEST(StragglersTest, APauseIsForgotten) {
  StragglerDetector detector;
  for (int report = 0; report < 20; ++report) {
    auto ranks = report % 3 == 2 ? Ranks({1, 1, 1}) : Ranks({1, 1, 9});
    EXPECT_THAT(detector.Observe(ranks, 100), IsEmpty()) << report;
  }
}

TEST(StragglersTest, ARankRecovers) {
  StragglerDetector detector;
  auto slow = Ranks({1, 1, 2}), between = Ranks({1, 1, 1.3}), well = Ranks({1, 1, 1.1});
  for (int report = 0; report < 3; ++report) detector.Observe(slow, 50);
  EXPECT_TRUE(slow[2].straggles);
  detector.Observe(between, 50);
  EXPECT_TRUE(between[2].straggles);
  detector.Observe(well, 50);
  EXPECT_FALSE(well[2].straggles);
}

}  // namespace
}  // namespace millrace::history
