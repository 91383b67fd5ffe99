// What every group of ranks must do.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/counting.h"
#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::engine {
namespace {

using Group = std::unique_ptr<Collective>;
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kInt, at::kByte};
/// Elements: none, one, fewer than ranks, odd, and several chunks: 3 ranks pass 768 KiB at a time.
constexpr std::int64_t kSizes[] = {0, 1, 2, 1'001, 250'007};
constexpr int kRanks = 3;

/// The input of a rank: values between -1 and 1 in floating point, small integers otherwise.
at::Tensor Input(std::int64_t elements, at::ScalarType type, int rank, std::uint64_t seed = 1) {
  const auto generator = at::detail::createCPUGenerator(seed * 1'000 + static_cast<std::uint64_t>(rank));
  if (at::isFloatingType(type)) return (at::rand({elements}, generator, at::kDouble) * 2 - 1).to(type);
  return at::randint(0, 80, {elements}, generator, at::kLong).to(type);
}

/// What a reduction must give, bit for bit: addends in the order of ranks; bfloat16 in float, rounded once.
/// `rounds`: bfloat16 is rounded in the end.
at::Tensor Reduced(std::int64_t elements, at::ScalarType type, int ranks, Reduction reduction, std::uint64_t seed = 1,
                   bool rounds = true) {
  const at::ScalarType wide = type == at::kBFloat16 ? at::kFloat : type;
  at::Tensor result = Input(elements, type, 0, seed).to(wide, false, true);
  for (int rank = 1; rank < ranks; ++rank) {
    const at::Tensor next = Input(elements, type, rank, seed).to(wide);
    if (reduction == Reduction::kMax) {
      result = at::maximum(result, next);
    } else {
      result.add_(next);
    }
  }
  if (reduction == Reduction::kMean) result.div_(at::full_like(result, ranks));
  return rounds ? result.to(type) : result;
}

void ExpectDone(const Status& status) { EXPECT_TRUE(status) << status.error().ToString(); }

class CollectiveConformance : public testing::TestWithParam<GroupKind> {
 protected:
  static void Run(int ranks, const std::function<void(Group)>& work, Duration timeout = std::chrono::seconds(60)) {
    RunRanks(GetParam(), ranks, work, timeout);
  }
};

TEST_P(CollectiveConformance, ReducesEveryTypeAndSize) {
  Run(kRanks, [](Group group) {
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t elements : kSizes) {
        SCOPED_TRACE(fmt::format("{} × {}", elements, c10::toString(type)));
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMean}) {
          if (reduction == Reduction::kMean && !at::isFloatingType(type)) continue;
          at::Tensor tensor = Input(elements, type, group->rank());
          ExpectDone(group->AllReduce(tensor, reduction));
          EXPECT_TRUE(tensor.equal(Reduced(elements, type, kRanks, reduction)));
          const at::Tensor expected = Reduced(elements * kRanks, type, kRanks, reduction);
          const at::Tensor my_part = expected.narrow(0, group->rank() * elements, elements);
          at::Tensor all = Input(elements * kRanks, type, group->rank());
          at::Tensor mine = at::empty({elements}, type);
          ExpectDone(group->ReduceScatter(mine, all, reduction));
          EXPECT_TRUE(mine.equal(my_part));
          all = Input(elements * kRanks, type, group->rank());
          mine = all.narrow(0, group->rank() * elements, elements);
          ExpectDone(group->ReduceScatter(mine, all, reduction));
          EXPECT_TRUE(mine.equal(my_part)) << "in place";
          if (reduction != Reduction::kSum) continue;
          all = Input(elements * kRanks, type, group->rank());
          mine = Input(elements, type, group->rank(), /*seed=*/5);
          // NCCL's sum has the type of its addends, before it is added.
          const bool rounds = GetParam() == GroupKind::kNccl;
          at::Tensor sum = Reduced(elements * kRanks, type, kRanks, reduction, 1, rounds)
                               .narrow(0, group->rank() * elements, elements)
                               .to(type == at::kBFloat16 ? at::kFloat : type);
          sum = sum.add(mine.to(sum.scalar_type())).to(type);
          ExpectDone(group->ReduceScatter(mine, all, Reduction::kAddSum));
          EXPECT_TRUE(mine.equal(sum)) << "added";
        }
      }
    }
  });
}

TEST_P(CollectiveConformance, HasNoMeanOfIntegers) {
  Run(kRanks, [](Group group) {
    ExpectDone(group->Barrier());  // the reduction fails at once: no rank may leave before the others have connected
    const Status mean = group->AllReduce(at::ones({4}, at::kLong), Reduction::kMean);
    ASSERT_FALSE(mean);
    EXPECT_EQ(mean.error().code(), Code::kInvalidArgument);
  });
}

TEST_P(CollectiveConformance, CopiesEveryTypeAndSize) {
  Run(kRanks, [](Group group) {
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t elements : kSizes) {
        SCOPED_TRACE(fmt::format("{} × {}", elements, c10::toString(type)));
        std::vector<at::Tensor> parts;
        for (int rank = 0; rank < kRanks; ++rank) parts.push_back(Input(elements, type, rank));
        const at::Tensor expected = at::cat(parts);
        at::Tensor all = at::empty({kRanks * elements}, type);
        ExpectDone(group->AllGather(all, parts[group->rank()]));
        EXPECT_TRUE(all.equal(expected));
        all = at::empty({kRanks * elements}, type);
        const at::Tensor mine = all.narrow(0, group->rank() * elements, elements);
        mine.copy_(parts[group->rank()]);
        ExpectDone(group->AllGather(all, mine));
        EXPECT_TRUE(all.equal(expected)) << "in place";

        for (int root = 0; root < kRanks; ++root) {
          at::Tensor tensor = Input(elements, type, group->rank());
          ExpectDone(group->Broadcast(tensor, root));
          EXPECT_TRUE(tensor.equal(parts[root]));
        }
        // Each rank sends to the next and receives from the one before it, all of them at once.
        at::Tensor received = at::empty({elements}, type);
        const auto send = group->StartSend(parts[group->rank()], (group->rank() + 1) % kRanks);
        ExpectDone(group->Receive(received, (group->rank() + kRanks - 1) % kRanks));
        ExpectDone(send->Wait());
        EXPECT_TRUE(received.equal(parts[(group->rank() + kRanks - 1) % kRanks]));
      }
    }
  });
}

TEST_P(CollectiveConformance, OperationsInFlightRunInOrder) {
  Run(kRanks, [](Group group) {
    constexpr int kOperations = 40;
    std::vector<at::Tensor> sums, words;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < kOperations; ++i) {
      sums.push_back(at::full({i * 37}, group->rank() + i, at::kLong));
      operations.push_back(group->StartAllReduce(sums.back()));
      words.push_back(at::full({i + 1}, group->rank() * 100 + i, at::kInt));
      operations.push_back(group->StartBroadcast(words.back(), i % kRanks));
    }
    std::ranges::reverse(operations);
    for (const auto& operation : operations) ExpectDone(operation->Wait());
    for (int i = 0; i < kOperations; ++i) {
      EXPECT_TRUE(sums[i].equal(at::full({i * 37}, 3 + 3 * i, at::kLong)));
      EXPECT_TRUE(words[i].equal(at::full({i + 1}, i % kRanks * 100 + i, at::kInt)));
    }
  });
}

TEST_P(CollectiveConformance, MessagesKeepTheirOrder) {
  Run(2, [](Group group) {
    constexpr int kMessages = 30;
    const int peer = 1 - group->rank();
    std::vector<at::Tensor> boxes;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < kMessages; ++i) {
      boxes.push_back(at::zeros({i * 5'000}, at::kInt));
      operations.push_back(group->StartReceive(boxes.back(), peer));
    }
    for (int i = 0; i < kMessages; ++i) {
      operations.push_back(group->StartSend(at::full({i * 5'000}, 10 * i + group->rank(), at::kInt), peer));
    }
    for (const auto& operation : operations) ExpectDone(operation->Wait());
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(boxes[i].equal(at::full({i * 5'000}, 10 * i + peer, at::kInt)));
  });
}

TEST_P(CollectiveConformance, MessagesDoNotWaitForThoseOfOtherPeers) {
  Run(kRanks, [](Group group) {
    // In the order in which they are started, each rank's receive would wait for a send behind another receive.
    const int next = (group->rank() + 1) % kRanks, before = (group->rank() + 2) % kRanks;
    at::Tensor from_next = at::zeros({200'000}), from_before = at::zeros({200'000});
    const at::Tensor mine = at::full({200'000}, group->rank(), at::kFloat);
    const auto first = group->StartReceive(from_next, next);
    const auto all_reduce_input = at::ones({3});
    const auto second = group->StartAllReduce(all_reduce_input);
    const auto third = group->StartReceive(from_before, before);
    const auto to_before = group->StartSend(mine, before);
    const auto to_next = group->StartSend(mine, next);
    for (const auto* operation : {&first, &second, &third, &to_before, &to_next}) ExpectDone((*operation)->Wait());
    EXPECT_EQ(from_next.sum().item<float>(), 200'000.0F * next);
    EXPECT_EQ(from_before.sum().item<float>(), 200'000.0F * before);
  });
}

TEST_P(CollectiveConformance, SplitsIntoGroupsThatThreadsUseAtOnce) {
  Run(kRanks, [](Group group) {
    // Two overlapping groups and one of a single rank; rank 1 is in both of the former.
    const int rank = group->rank();
    const auto split = [&](std::string name, std::vector<int> members) -> Group {
      if (std::ranges::find(members, rank) == members.end()) return nullptr;
      auto part = group->Split(std::move(name), members);
      EXPECT_TRUE(part) << part.error().ToString();
      return part ? *std::move(part) : nullptr;
    };
    const Group all = split("everyone", {2, 0, 1});
    const Group low = split("pair", {0, 1}), high = split("pair", {1, 2});
    const Group alone = split("alone", {rank});
    ASSERT_TRUE(all && alone && (low || rank == 2) && (high || rank == 0));
    EXPECT_EQ(all->rank(), (rank + 1) % kRanks);
    EXPECT_EQ(alone->size(), 1);
    const auto use = [](Collective* part, int members) {
      if (part == nullptr) return;
      for (int i = 0; i < 50; ++i) {
        at::Tensor tensor = at::full({100 * i}, 1, at::kInt);
        ExpectDone(part->AllReduce(tensor));
        EXPECT_EQ(tensor.sum().item<int>(), 100 * i * members);
      }
    };
    {
      std::vector<std::jthread> threads;
      for (const Group* part : {&all, &low, &high}) {
        threads.emplace_back([&, part] { use(part->get(), part == &all ? kRanks : 2); });
      }
      use(group.get(), kRanks);
    }
    auto again = all->Duplicate("again");
    ASSERT_TRUE(again) << again.error().ToString();
    EXPECT_EQ((*again)->rank(), all->rank());
    use(again->get(), kRanks);
    ExpectDone(group->Barrier());
  });
}

TEST_P(CollectiveConformance, ALostRankIsAnErrorSoon) {
  Run(kRanks, [](Group group) {
    ExpectDone(group->Barrier());
    if (group->rank() == 1) return;  // leaves
    const TimePoint start = SystemClock().Now();
    at::Tensor box = at::zeros({10});
    const auto receive = group->StartReceive(box, 1);
    const auto all_reduce = group->StartAllReduce(at::ones({100'000}));
    for (const auto* operation : {&receive, &all_reduce}) {
      const Status status = (*operation)->Wait();
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code(), Code::kUnavailable);
      EXPECT_NE(status.error().ToString().find("rank"), std::string::npos) << status.error().ToString();
    }
    EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(2));
    EXPECT_FALSE(group->Barrier()) << "a group does not recover";
  });
}

TEST_P(CollectiveConformance, ARankThatGivesUpIsAnErrorSoon) {
  Run(kRanks, [](Group group) {
    ExpectDone(group->Barrier());
    const TimePoint start = SystemClock().Now();
    at::Tensor box = at::zeros({10});
    const auto receive = group->StartReceive(box, (group->rank() + 1) % kRanks);  // nobody sends
    if (group->rank() == 1) group->Abort(Error(Code::kNotFound, "no data"));
    const Status status = receive->Wait();
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().ToString().find(group->rank() == 1 ? "no data" : "rank"), std::string::npos)
        << status.error().ToString();
    EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(2));
    EXPECT_FALSE(group->Barrier());
  });
}

TEST_P(CollectiveConformance, AHungRankIsAnErrorAfterTheTimeout) {
  // Ranks that connect have the same time to find each other.
  const bool connects =
      GetParam() != GroupKind::kThreads && GetParam() != GroupKind::kDelayed && GetParam() != GroupKind::kStaged;
  std::latch given_up(1);
  Run(
      2,
      [&](Group group) {
        if (group->rank() == 1) return given_up.wait();  // lives, but does not take part
        const Status status = group->AllReduce(at::ones({10}));
        given_up.count_down();
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code(), Code::kUnavailable);
        EXPECT_NE(status.error().ToString().find("rank 1"), std::string::npos) << status.error().ToString();
      },
      std::chrono::milliseconds(connects ? 5'000 : 200));
}

TEST_P(CollectiveConformance, DifferentOperationsAreErrors) {
  const std::function<Status(Collective&)> kDifferences[] = {
      [](Collective& group) { return group.AllReduce(at::ones({10 + group.rank()})); },
      [](Collective& group) { return group.AllReduce(at::ones({10}, group.rank() == 0 ? at::kFloat : at::kInt)); },
      [](Collective& group) { return group.Broadcast(at::ones({10}), group.rank()); },
      [](Collective& group) {
        return group.rank() == 0 ? group.AllReduce(at::ones({10})) : group.Broadcast(at::ones({10}), 0);
      },
      [](Collective& group) {
        return group.rank() == 0 ? group.Send(at::ones({10}), 1) : group.Receive(at::ones({11}), 0);
      }};
  std::atomic<int> told[std::size(kDifferences)] = {};
  Run(2, [&](Group group) {
    for (std::size_t i = 0; i < std::size(kDifferences); ++i) {
      SCOPED_TRACE(i);
      const auto part = group->Duplicate(std::to_string(i));
      ASSERT_TRUE(part) << part.error().ToString();
      const Status status = kDifferences[i](**part);
      if (!status && status.error().code() == Code::kInvalidArgument) ++told[i];
      EXPECT_FALSE((*part)->Barrier());
    }
    ExpectDone(group->Barrier());
  });
  for (const std::atomic<int>& ranks : told) EXPECT_GE(ranks, 1);
}

TEST_P(CollectiveConformance, WrongArgumentsAreErrors) {
  const std::function<Status(Collective&)> kMistakes[] = {
      [](Collective& group) { return group.AllReduce(at::ones({4, 4}).t()); },
      [](Collective& group) { return group.AllReduce(at::ones({4}, at::kBool)); },
      [](Collective& group) { return group.AllReduce(at::ones({4}), Reduction::kAddSum); },
      [](Collective& group) { return group.AllReduce({}); },
      [](Collective& group) { return group.AllGather(at::ones({5}), at::ones({2})); },
      [](Collective& group) { return group.AllGather(at::ones({4}), at::ones({2}, at::kInt)); },
      [](Collective& group) { return group.ReduceScatter(at::ones({4}), at::ones({4})); },
      [](Collective& group) { return group.Broadcast(at::ones({4}), 2); },
      [](Collective& group) { return group.Send(at::ones({4}), group.rank()); }};
  Run(2, [&](Group group) {
    for (std::size_t i = 0; i < std::size(kMistakes); ++i) {
      SCOPED_TRACE(i);
      const auto part = group->Duplicate(std::to_string(i));
      ASSERT_TRUE(part) << part.error().ToString();
      const Status status = kMistakes[i](**part);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
    }
    EXPECT_FALSE(group->Split("wrong", std::vector{0, 0}));
    EXPECT_FALSE(group->Split("wrong", std::vector{1 - group->rank()}));
    ExpectDone(group->Barrier());
  });
}

INSTANTIATE_TEST_SUITE_P(Over, CollectiveConformance, testing::ValuesIn(kEveryGroupKind), GroupKindName);

TEST(StagedGroup, AddsFloat16InFloat32) {
  RunRanks(GroupKind::kStaged, kRanks, [](Group group) {
    // In float16, 2048 + 1 is 2048.
    const at::Tensor mine = at::full({6}, group->rank() == 0 ? 2048 : 1, at::kHalf);
    at::Tensor sum = mine.clone(), part = at::empty({2}, at::kHalf);
    ExpectDone(group->AllReduce(sum));
    ExpectDone(group->ReduceScatter(part, mine.clone()));
    EXPECT_TRUE(sum.equal(at::full({6}, 2050, at::kHalf)));
    EXPECT_TRUE(part.equal(at::full({2}, 2050, at::kHalf)));
  });
}

TEST(StagedGroup, PassesOnWhatIsOnTheCpu) {
  auto traffic = std::make_shared<Traffic>();
  const Group group = StageThroughHost(MakeCounting(std::move(ConnectThreads(1)[0]), traffic), at::kCPU);
  const at::Tensor tensor = at::ones({10});
  ExpectDone(group->AllReduce(tensor));
  EXPECT_EQ(traffic->bytes(Traffic::kAllReduce), 40u);
  const auto part = group->Duplicate("part");
  ASSERT_TRUE(part);
  ExpectDone((*part)->Broadcast(tensor, 0));
}

TEST(SoloGroup, DoesEveryOperation) {
  const Group group = std::move(ConnectThreads(1)[0]);
  at::Tensor tensor = at::arange(4, at::kFloat), copy = at::zeros({4});
  ExpectDone(group->AllReduce(tensor));
  ExpectDone(group->AllGather(copy, tensor));
  EXPECT_TRUE(copy.equal(at::arange(4, at::kFloat)));
  copy.zero_();
  ExpectDone(group->ReduceScatter(copy, tensor));
  EXPECT_TRUE(copy.equal(tensor));
  ExpectDone(group->ReduceScatter(copy, tensor, Reduction::kAddSum));
  EXPECT_TRUE(copy.equal(tensor * 2));
  ExpectDone(group->Broadcast(tensor, 0));
  ExpectDone(group->Barrier());
  EXPECT_FALSE(group->Send(tensor, 0));
  EXPECT_FALSE(group->AllGather(at::ones({3}), tensor));
  EXPECT_TRUE(group->Duplicate("again"));
}

TEST(CountingGroup, CountsBytesByKind) {
  const auto traffic = std::make_shared<Traffic>();
  const Group group = MakeCounting(std::move(ConnectThreads(1)[0]), traffic);
  ExpectDone(group->AllReduce(at::ones({10})));
  const auto part = group->Duplicate("part");
  ASSERT_TRUE(part);
  ExpectDone((*part)->AllReduce(at::ones({1}, at::kLong)));
  ExpectDone(group->ReduceScatter(at::ones({3}), at::ones({3})));
  EXPECT_EQ(traffic->bytes(Traffic::kAllReduce), 48u);
  EXPECT_EQ(traffic->operations(Traffic::kAllReduce), 2u);
  EXPECT_EQ(traffic->bytes(Traffic::kReduceScatter), 12u);
  EXPECT_EQ(traffic->operations(Traffic::kSend), 0u);
}

/// One rank of a run in which every choice follows from the seed. Returns the first error.
Status RandomOperations(Collective& group, std::uint64_t seed) {
  Random random(seed);  // the same on every rank
  for (int i = 0; i < 6; ++i) {
    const auto elements = static_cast<std::int64_t>(random.Below(40));
    const std::uint64_t inputs = random.Next() >> 32;
    const int rank = group.rank(), size = group.size();
    switch (random.Below(4)) {
      case 0: {
        at::Tensor tensor = Input(elements, at::kFloat, rank, inputs);
        MR_TRY(group.AllReduce(tensor));
        EXPECT_TRUE(tensor.equal(Reduced(elements, at::kFloat, size, Reduction::kSum, inputs)));
        break;
      }
      case 1: {
        at::Tensor all = at::empty({elements * size}, at::kInt);
        MR_TRY(group.AllGather(all, at::full({elements}, rank, at::kInt)));
        EXPECT_EQ(all.sum().item<std::int64_t>(), elements * size * (size - 1) / 2);
        break;
      }
      case 2: {
        at::Tensor tensor = at::full({elements}, rank, at::kInt);
        MR_TRY(group.Broadcast(tensor, 1));
        EXPECT_EQ(tensor.sum().item<std::int64_t>(), elements);
        break;
      }
      default: {
        at::Tensor tensor = at::full({elements}, -1, at::kInt);
        const auto receive = group.StartReceive(tensor, (rank + size - 1) % size);
        const Status sent = group.Send(at::full({elements}, rank, at::kInt), (rank + 1) % size);
        MR_TRY(receive->Wait());
        MR_TRY(sent);
        EXPECT_EQ(tensor.sum().item<std::int64_t>(), elements * ((rank + size - 1) % size));
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
      if (fault != 0 && rank == culprit) EXPECT_FALSE(outcomes[rank]);
      if (!outcomes[rank] && rank != culprit) EXPECT_EQ(outcomes[rank].error().code(), Code::kUnavailable);
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::engine
