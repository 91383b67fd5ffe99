#include "millrace/collectives/testing/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/counting.h"

namespace millrace::collectives {
namespace {

using namespace conformance;

INSTANTIATE_TEST_SUITE_P(Over, CollectiveConformance,
                         testing::Values(GroupUnderTest{GroupKind::kThreads, "Threads"},
                                         GroupUnderTest{GroupKind::kTcp, "Tcp"},
                                         GroupUnderTest{GroupKind::kSharedMemory, "SharedMemory"},
                                         GroupUnderTest{GroupKind::kDelayed, "Delayed"},
                                         GroupUnderTest{GroupKind::kNccl, "Nccl"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SoloGroup, DoesEveryOperation) {
  const Group group = std::move(ConnectThreads(1)[0]);
  const Array<float> numbers({0, 1, 2, 3}), copy(4);
  ExpectDone(group->AllReduce(numbers));
  ExpectDone(group->AllGather(copy, numbers));
  EXPECT_EQ(copy.values(), (std::vector<float>{0, 1, 2, 3}));
  std::ranges::fill(copy.values(), 0.0F);
  ExpectDone(group->ReduceScatter(copy, numbers));
  EXPECT_EQ(copy.values(), (std::vector<float>{0, 1, 2, 3}));
  ExpectDone(group->ReduceScatter(copy, numbers, Reduction::kAddSum));
  EXPECT_EQ(copy.values(), (std::vector<float>{0, 2, 4, 6}));
  ExpectDone(group->Broadcast(numbers, 0));
  ExpectDone(group->Barrier());
  EXPECT_FALSE(group->Send(numbers, 0));
  EXPECT_FALSE(group->AllGather(Array<float>(3), numbers));
  EXPECT_TRUE(group->Duplicate("again"));
}

TEST(CountingGroup, CountsBytesByKind) {
  const auto traffic = std::make_shared<Traffic>();
  const Group group = MakeCounting(std::move(ConnectThreads(1)[0]), traffic);
  ExpectDone(group->AllReduce(Array<float>(10)));
  const auto part = group->Duplicate("part");
  ASSERT_TRUE(part);
  ExpectDone((*part)->AllReduce(Array<std::int64_t>(1)));
  ExpectDone(group->ReduceScatter(Array<float>(3), Array<float>(3)));
  EXPECT_EQ(traffic->bytes(Traffic::kAllReduce), 48u);
  EXPECT_EQ(traffic->operations(Traffic::kAllReduce), 2u);
  EXPECT_EQ(traffic->bytes(Traffic::kReduceScatter), 12u);
  EXPECT_EQ(traffic->operations(Traffic::kSend), 0u);
}

/// One rank of a run in which every choice follows from the seed. Returns the first error.
Status RandomOperations(Collective& group, std::uint64_t seed) {
  Random random(seed);  // the same on every rank
  for (int i = 0; i < 6; ++i) {
    const auto count = static_cast<std::int64_t>(random.Below(40));
    const std::uint64_t inputs = random.Next() >> 32;
    const int rank = group.rank(), size = group.size();
    switch (random.Below(4)) {
      case 0: {
        const Array<float> numbers(Input<float>(count, rank, inputs));
        MR_TRY(group.AllReduce(numbers));
        EXPECT_EQ(numbers.values(), Reduced<float>(count, size, Reduction::kSum, inputs));
        break;
      }
      case 1: {
        const Array<std::int32_t> all(count * size);
        MR_TRY(group.AllGather(all, Array<std::int32_t>(count, rank)));
        EXPECT_EQ(SumOf(all), count * size * (size - 1) / 2);
        break;
      }
      case 2: {
        const Array<std::int32_t> told(count, rank);
        MR_TRY(group.Broadcast(told, 1));
        EXPECT_TRUE(told.IsFilledWith(1));
        break;
      }
      default: {
        const Array<std::int32_t> box(count, -1);
        const auto receive = group.StartReceive(box, (rank + size - 1) % size);
        const Status sent = group.Send(Array<std::int32_t>(count, rank), (rank + 1) % size);
        MR_TRY(receive->Wait());
        MR_TRY(sent);
        EXPECT_TRUE(box.IsFilledWith((rank + size - 1) % size));
      }
    }
  }
  return {};
}

TEST(FaultyGroup, NoDeadlockInAThousandRuns) {
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    Random random(seed);
    const int culprit = static_cast<int>(random.Below(kRanks));
    const std::uint64_t at = random.Below(6), fault = random.Below(3);
    auto groups = ConnectThreads(kRanks, std::chrono::seconds(30));
    std::vector<Status> outcomes(kRanks);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          FaultPlan plan{.seed = seed, .most_delay = std::chrono::microseconds(seed % 4 == 0 ? 100 : 0)};
          if (rank == culprit && fault == 1) plan.lost_at = at;
          if (rank == culprit && fault == 2) plan.fails_at = at;
          const Group group = MakeFaulty(std::move(groups[rank]), plan);
          outcomes[rank] = RandomOperations(*group, seed);
        });
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(fmt::format("seed {}, rank {} of which {} is to blame for {}", seed, rank, culprit, fault));
      if (fault == 0) ExpectDone(outcomes[rank]);
      if (fault != 0 && rank == culprit) {
        EXPECT_FALSE(outcomes[rank]);
      } else if (!outcomes[rank]) {
        EXPECT_EQ(outcomes[rank].error().code(), Code::kUnavailable);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::collectives
