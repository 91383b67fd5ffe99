#include "millrace/engine/ops/common/sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::engine::ops {
namespace {

using testing::ElementsAre;

std::vector<std::int32_t> Positions(const Sequences& sequences) {
  const auto* first = sequences.positions().data_ptr<std::int32_t>();
  return {first, first + sequences.tokens()};
}

TEST(Sequences, RowsFollowWhatACacheHolds) {
  const Sequences rows = Sequences::Even(2, 3, 7);
  EXPECT_EQ(rows.count(), 2);
  EXPECT_EQ(rows.tokens(), 6);
  EXPECT_TRUE(rows.even());
  EXPECT_EQ(rows.limit(), 10);
  EXPECT_THAT(Positions(rows), ElementsAre(7, 8, 9, 7, 8, 9));
}

TEST(Sequences, EachFollowsItsOwnPast) {
  const Sequences parts = Sequences::Following(std::vector<std::int64_t>{1, 3, 1}, std::vector<std::int64_t>{9, 0, 4});
  EXPECT_EQ(parts.count(), 3);
  EXPECT_EQ(parts.tokens(), 5);
  EXPECT_EQ(parts.longest(), 3);
  EXPECT_EQ(parts.limit(), 10);
  EXPECT_THAT(Positions(parts), ElementsAre(9, 0, 1, 2, 4));
  const Sequences last = parts.Slice(1, 3);
  EXPECT_EQ(last.count(), 2);
  EXPECT_EQ(last.past(1), 4);
  EXPECT_EQ(last.limit(), 5);
  EXPECT_THAT(Positions(last), ElementsAre(0, 1, 2, 4));
  EXPECT_ANY_THROW(Sequences::Following({}, {}));
  EXPECT_ANY_THROW(Sequences::Following(std::vector<std::int64_t>{2, 0}, std::vector<std::int64_t>{0, 0}));
}

TEST(Sequences, PositionsBeginAnewWithEach) {
  const Sequences cut = Sequences::Cut({{0, 1, 4, 5, 9, 12}}, 12);
  EXPECT_EQ(cut.count(), 5);
  EXPECT_EQ(cut.begin(3), 5);
  EXPECT_EQ(cut.length(3), 4);
  EXPECT_EQ(cut.longest(), 4);
  EXPECT_FALSE(cut.even());
  EXPECT_EQ(cut.limit(), 4);
  EXPECT_THAT(cut.longest_first(), ElementsAre(3, 1, 4, 0, 2));
  EXPECT_THAT(Positions(cut), ElementsAre(0, 0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2));
}

TEST(Sequences, BoundsThatDoNotCoverAllTokensAreRefused) {
  using Bounds = std::vector<std::int32_t>;
  for (const Bounds& bounds :
       {Bounds{}, Bounds{0}, Bounds{0, 4}, Bounds{0, 6}, Bounds{1, 5}, Bounds{0, 3, 3, 5}, Bounds{0, 4, 2, 5}}) {
    EXPECT_ANY_THROW(Sequences::Cut(bounds, 5));
  }
  EXPECT_ANY_THROW(Sequences::Even(0, 5));
}

}  // namespace
}  // namespace millrace::engine::ops
