#include "millrace/engine/layout/stage_division.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::engine {
namespace {

TEST(DivideBlocks, StagesFollowEachOtherAndAreEven) {
  for (std::int64_t blocks = 1; blocks <= 40; ++blocks) {
    for (std::int64_t count = 1; count <= 12; ++count) {
      for (const double head : {0.0, 0.7, 3.2}) {
        const auto stages = DivideBlocks(blocks, head, count);
        ASSERT_EQ(static_cast<std::int64_t>(stages.size()), count);
        std::int64_t end = 0;
        double most = 0;
        for (const BlockRange& stage : stages) {
          EXPECT_EQ(stage.first, end);
          EXPECT_GE(stage.count(), blocks >= count ? 1 : 0);
          end = stage.last;
          most = std::max(most, static_cast<double>(stage.count()) + (stage.last == blocks ? head : 0));
        }
        EXPECT_EQ(end, blocks);
        if (blocks < count) continue;
        const double even = (static_cast<double>(blocks) + head) / static_cast<double>(count);
        EXPECT_LE(most, std::max(even, 1 + head) + 1) << blocks << " " << count << " " << head;
      }
    }
  }
}

TEST(DivideBlocks, TheHeadCountsAsBlocks) {
  const auto stages = DivideBlocks(8, 2, 2);
  EXPECT_EQ(stages[0].count(), 5);
  EXPECT_EQ(stages[1].count(), 3);
}

}  // namespace
}  // namespace millrace::engine
