#include "millrace/jobs/launchers/node_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Use = NodeState::Use;

NodePool Pool(std::size_t nodes, std::vector<int> sizes) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < nodes; ++i) names.push_back(fmt::format("n{}", i));
  return {std::move(names), std::move(sizes)};
}

TEST(NodePoolTest, ASpareTakesTheSlotOfALostNode) {
  NodePool pool = Pool(4, {3});
  EXPECT_THAT(*pool.Place(), ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.at(3).use, Use::kSpare);
  pool.NoteLost(1, "is lost: it said nothing");
  EXPECT_THAT(pool.ToAsk(), ElementsAre(0, 2, 3));
  EXPECT_THAT(pool.LastResort(), IsEmpty());
  EXPECT_THAT(*pool.Place(), ElementsAre(0, 3, 2));
  EXPECT_EQ(pool.at(1).use, Use::kLost);
  EXPECT_EQ(pool.at(3).use, Use::kRuns);
}

TEST(NodePoolTest, ANodeThatIsBackIsASpare) {
  NodePool pool = Pool(3, {2});
  pool.Place();
  pool.NoteLost(0, "is lost");
  EXPECT_THAT(*pool.Place(), ElementsAre(2, 1));
  pool.NoteReady(0);
  EXPECT_EQ(pool.at(0).use, Use::kSpare);
  EXPECT_THAT(*pool.Place(), ElementsAre(2, 1));
}

TEST(NodePoolTest, LostNodesAreAskedAgainOnlyIfTheyAreNeeded) {
  NodePool pool = Pool(3, {2});
  pool.NoteLost(0, "node n0 is lost: gone");
  EXPECT_THAT(pool.LastResort(), IsEmpty());
  pool.NoteUnfit(1, "node n1 is unfit: its disk is full");
  EXPECT_THAT(pool.LastResort(), ElementsAre(0, 1));
  const auto placed = pool.Place();
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().code(), Code::kUnavailable);
  EXPECT_THAT(placed.error().ToString(), HasSubstr("2 nodes are needed and 1 ready: node n0 is lost: gone; node n1 is "
                                                   "unfit: its disk is full"));
}

TEST(NodePoolTest, ANodeThatIsSetAsideStaysAway) {
  NodePool pool = Pool(3, {2});
  pool.Place();
  EXPECT_FALSE(pool.SetAside("n9", "unknown"));
  EXPECT_TRUE(pool.SetAside("n1", "failed twice"));
  pool.NoteReady(1);
  pool.NoteLost(1, "is lost");
  EXPECT_EQ(pool.at(1).use, Use::kSetAside);
  EXPECT_THAT(*pool.Place(), ElementsAre(0, 2));
  EXPECT_FALSE(pool.SetAside("n0", "there is no other"));
  EXPECT_EQ(pool.at(0).use, Use::kRuns);
}

TEST(NodePoolTest, AnUnfitNodeIsReplaceableWhileThereIsASpare) {
  NodePool pool = Pool(3, {2});
  pool.Place();
  EXPECT_EQ(pool.Replaceable(), pool.size());
  pool.NoteUnfit(0, "is unfit");
  EXPECT_EQ(pool.Replaceable(), 0u);
  pool.NoteLost(2, "is lost");
  EXPECT_EQ(pool.Replaceable(), pool.size());
}

TEST(NodePoolTest, FewerNodesGoOnAndMoreComeBack) {
  NodePool pool = Pool(4, {4, 2, 1});
  EXPECT_THAT(*pool.Place(), ElementsAre(0, 1, 2, 3));
  pool.NoteLost(0, "is lost");
  EXPECT_EQ(pool.NextSize(), 2);
  EXPECT_THAT(*pool.Place(), ElementsAre(2, 1));
  EXPECT_EQ(pool.at(3).use, Use::kSpare);
  EXPECT_THAT(pool.MayReturn(), ElementsAre(0));
  pool.NoteReady(0);
  EXPECT_EQ(pool.NextSize(), 4);
  EXPECT_EQ(pool.Place()->size(), 4u);
  EXPECT_THAT(pool.MayReturn(), IsEmpty());
}

/// Whatever happens: a placed node is ready, no node has two slots, and a ready node keeps its slot.
TEST(NodePoolTest, KeepsItsPromisesUnderRandomLosses) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    NodePool pool = Pool(1 + random.Below(6), random.Below(2) == 0 ? std::vector<int>{3, 2, 1} : std::vector<int>{2});
    std::vector<std::size_t> before;
    for (int round = 0; round < 30; ++round) {
      const std::size_t node = random.Below(pool.size());
      const std::uint64_t what = random.Below(8);
      if (what < 2) pool.NoteLost(node, "is lost");
      if (what == 2) pool.NoteUnfit(node, "is unfit");
      if (what == 3 && random.Below(4) == 0) pool.SetAside(pool.at(node).name, "failed");
      if (what > 3) pool.NoteReady(node);
      const auto placed = pool.Place();
      if (!placed) continue;
      EXPECT_EQ(static_cast<int>(placed->size()), pool.NextSize());
      for (std::size_t slot = 0; slot < placed->size(); ++slot) {
        const std::size_t each = placed->at(slot);
        EXPECT_EQ(pool.at(each).use, Use::kRuns) << seed;
        EXPECT_EQ(std::ranges::count(*placed, each), 1) << seed;
        if (slot < before.size() && before[slot] != each) EXPECT_NE(pool.at(before[slot]).use, Use::kRuns) << seed;
      }
      before = *placed;
    }
  }
}

}  // namespace
}  // namespace millrace::jobs
