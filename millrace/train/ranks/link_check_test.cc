#include "millrace/train/ranks/link_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "millrace/collectives/connect.h"
#include "millrace/collectives/testing/forwarding.h"

namespace millrace::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// The network of a rank, which takes time by the rank's own clock.
class TimedCollective final : public collectives::ForwardingCollective {
 public:
  /// `bytes_per_s` to each rank of the job. `members`: this group's ranks in the job.
  TimedCollective(std::unique_ptr<engine::Collective> inner, std::map<int, double> bytes_per_s,
                  std::vector<int> members, FakeClock& clock)
      : ForwardingCollective(std::move(inner)),
        bytes_per_s_(std::move(bytes_per_s)),
        members_(std::move(members)),
        clock_(clock) {}

  Operation StartSend(engine::Elements elements, int to) override {
    Pass(elements, to);
    return inner_->StartSend(std::move(elements), to);
  }
  Operation StartReceive(engine::Elements elements, int from) override {
    Pass(elements, from);
    return inner_->StartReceive(std::move(elements), from);
  }
  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    auto part = MR_TRY(inner_->Split(std::move(name), members));
    return std::make_unique<TimedCollective>(std::move(part), bytes_per_s_,
                                             std::vector<int>(members.begin(), members.end()), clock_);
  }

 private:
  void Pass(const engine::Elements& elements, int peer) {
    constexpr double kLatency = 1e-4;
    const double seconds =
        kLatency + static_cast<double>(elements.bytes()) / bytes_per_s_.at(members_[static_cast<std::size_t>(peer)]);
    clock_.Advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  }
  const std::map<int, double> bytes_per_s_;
  const std::vector<int> members_;
  FakeClock& clock_;
};

/// Measures a network of `nodes.size()` ranks, whose links have 1 GB/s but for those in `slow`.
std::vector<NetworkFigures> Measure(const std::vector<std::string>& nodes,
                                    const std::map<std::pair<int, int>, double>& slow = {}) {
  const int size = static_cast<int>(nodes.size());
  auto groups = collectives::ConnectThreads(size);
  std::vector<NetworkFigures> figures(nodes.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      std::map<int, double> rates;
      std::vector<int> members;
      for (int peer = 0; peer < size; ++peer) {
        const auto found = slow.find({std::min(rank, peer), std::max(rank, peer)});
        rates[peer] = found != slow.end() ? found->second : 1e9;
        members.push_back(peer);
      }
      FakeClock clock;
      TimedCollective world(std::move(groups[at]), rates, members, clock);
      auto measured = MeasureNetwork(world, nodes[at], clock);
      ASSERT_TRUE(measured) << measured.error().ToString();
      figures[at] = *std::move(measured);
      ASSERT_TRUE(world.Barrier());  // nobody leaves while others measure
    });
  }
  threads.clear();
  return figures;
}

TEST(LinkCheck, MeasuresEachLinkOnce) {
  for (const int machines : {2, 3, 4, 5, 8}) {
    std::vector<std::string> nodes;
    for (int i = 0; i < machines; ++i) nodes.push_back("n" + std::to_string(i));
    const auto figures = Measure(nodes);
    std::set<std::pair<int, int>> seen;
    for (const LinkFigures& link : figures[0].links) {
      EXPECT_TRUE(seen.insert({link.first, link.second}).second);
      EXPECT_NEAR(link.bytes_per_s, 1e9, 1e8);
      EXPECT_NEAR(link.latency_s, 1e-4, 1e-6);
    }
    EXPECT_EQ(seen.size(), machines * (machines - 1) / 2) << machines;
    EXPECT_THAT(SlowLinks(figures[0]), IsEmpty());
    for (const NetworkFigures& others : figures) EXPECT_EQ(others.links.size(), figures[0].links.size());
  }
}

TEST(LinkCheck, RanksOfOneMachineMeasureNothing) {
  const auto figures = Measure({"a", "a", "a"});
  EXPECT_THAT(figures[0].links, IsEmpty());
  EXPECT_EQ(figures[0].all_reduce_bytes_per_s, 0);
}

TEST(LinkCheck, TheFirstRankOfEachMachineMeasures) {
  const auto figures = Measure({"a", "a", "b", "b", "c"});
  std::set<std::pair<int, int>> links;
  for (const LinkFigures& link : figures[3].links) links.insert({link.first, link.second});
  EXPECT_EQ(links, (std::set<std::pair<int, int>>{{0, 2}, {0, 4}, {2, 4}}));
}

TEST(LinkCheck, NamesASlowLink) {
  const auto figures = Measure({"a", "b", "c", "d"}, {{{1, 2}, 2e8}});
  EXPECT_THAT(SlowLinks(figures[0]), ElementsAre(HasSubstr("the link of b (rank 1) and c (rank 2) is slow: ")));
  EXPECT_THAT(SlowLinks(figures[3])[0], HasSubstr("MB/s and 100 µs, the median is "));
}

TEST(LinkCheck, NamesAMachineWhoseLinksAreAllSlow) {
  const auto figures = Measure({"a", "b", "c", "d"}, {{{0, 3}, 1e8}, {{1, 3}, 1e8}, {{2, 3}, 1e8}});
  EXPECT_EQ(SlowLinks(figures[0]).size(), 3);
  const auto slow = SlowMachines(figures[0]);
  ASSERT_EQ(slow.size(), 1);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_THAT(slow[0].sentence, HasSubstr("all links of d (rank 3) are slow: at best 100 MB/s"));
}

TEST(LinkCheck, KnowsTheSlowOneOfThreeMachines) {
  // Two of three links are slow, so the median is a slow one.
  const auto slow = SlowMachines(Measure({"a", "b", "b", "c"}, {{{0, 1}, 1e8}, {{0, 3}, 1e8}})[0]);
  ASSERT_EQ(slow.size(), 1);
  EXPECT_EQ(slow[0].rank, 0);
  EXPECT_THAT(SlowMachines(Measure({"a", "b"}, {{{0, 1}, 1e8}})[0]), IsEmpty());
  EXPECT_THAT(SlowMachines(Measure({"a", "b", "c", "d", "e"}, {{{0, 1}, 1e10}})[0]), IsEmpty())
      << "one link is faster than the others";
}

}  // namespace
}  // namespace millrace::train
