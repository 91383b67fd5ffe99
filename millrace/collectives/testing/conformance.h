// A conformance suite for groups of ranks. A test program includes it and instantiates CollectiveConformance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/array.h"
#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {

/// A kind of groups that the suite tests.
struct GroupUnderTest {
  GroupKind kind = GroupKind::kThreads;
  const char* name = "";
  /// Makes a group of the one that RunRanks() gives. Empty: that one is tested.
  std::function<std::unique_ptr<Collective>(std::unique_ptr<Collective>)> wrap = {};
};

namespace conformance {

using Group = std::unique_ptr<Collective>;
/// Elements: none, one, fewer than ranks, odd, and several chunks: 3 ranks pass 768 KiB at a time.
constexpr std::int64_t kSizes[] = {0, 1, 2, 1'001, 250'007};
constexpr int kRanks = 3;

/// Calls `work.template operator()<T>()` for each type that ranks add.
template <class Work>
void ForEachType(const Work& work) {
  const auto each = [&]<class T>() {
    SCOPED_TRACE(std::string(NameOf(kTypeOf<T>)));
    work.template operator()<T>();
  };
  each.template operator()<float>();
  each.template operator()<Bf16>();
  each.template operator()<double>();
  each.template operator()<std::int64_t>();
  each.template operator()<std::int32_t>();
  each.template operator()<std::uint8_t>();
}

/// The type in which numbers are added: bfloat16 in float.
template <class T>
using WideOf = std::conditional_t<std::is_same_v<T, Bf16>, float, T>;
template <class T>
WideOf<T> Widened(T value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return ToFloat(value);
  } else {
    return value;
  }
}
template <class T, class Wide>
T Narrowed(Wide value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return FromFloat<Bf16>(value);
  } else {
    return value;
  }
}

/// The input of a rank: values between -1 and 1 in floating point, small integers otherwise.
template <class T>
std::vector<T> Input(std::int64_t count, int rank, std::uint64_t seed = 1) {
  Random random(seed * 1'000 + static_cast<std::uint64_t>(rank));
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    if constexpr (std::is_floating_point_v<WideOf<T>>) {
      value = Narrowed<T>(static_cast<WideOf<T>>(random.Uniform() * 2 - 1));
    } else {
      value = static_cast<T>(random.Below(80));
    }
  }
  return values;
}

/// The expected result of a reduction, bit for bit: addends in the order of ranks; bfloat16 in float, not yet rounded.
template <class T>
std::vector<WideOf<T>> Reduced(std::int64_t count, int ranks, Reduction reduction, std::uint64_t seed = 1) {
  std::vector<WideOf<T>> result(static_cast<std::size_t>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<T> input = Input<T>(count, rank, seed);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const WideOf<T> next = Widened(input[i]);
      if (rank == 0) {
        result[i] = next;
      } else if (reduction == Reduction::kMax) {
        result[i] = std::max(result[i], next);
      } else {
        result[i] = static_cast<WideOf<T>>(result[i] + next);
      }
    }
  }
  if (reduction == Reduction::kMean) {
    for (WideOf<T>& value : result) value = static_cast<WideOf<T>>(value / static_cast<WideOf<T>>(ranks));
  }
  return result;
}
template <class T>
std::vector<T> Rounded(const std::vector<WideOf<T>>& wide) {
  std::vector<T> values;
  for (const WideOf<T> value : wide) values.push_back(Narrowed<T>(value));
  return values;
}
/// The elements of rank `rank` of a whole.
template <class T>
std::vector<T> PartOf(const std::vector<T>& all, std::int64_t count, int rank) {
  const auto begin = all.begin() + rank * count;
  return {begin, begin + count};
}
template <class T>
T SumOf(const Array<T>& array) {
  T sum = {};
  for (const T value : array.values()) sum += value;
  return sum;
}

inline void ExpectDone(const Status& status) { EXPECT_TRUE(status) << status.error().ToString(); }

}  // namespace conformance

class CollectiveConformance : public testing::TestWithParam<GroupUnderTest> {
 protected:
  static void Run(int ranks, const std::function<void(conformance::Group)>& work,
                  Duration timeout = std::chrono::seconds(60)) {
    const auto wrapped = [&](conformance::Group group) {
      work(GetParam().wrap ? GetParam().wrap(std::move(group)) : std::move(group));
    };
    RunRanks(GetParam().kind, ranks, wrapped, timeout);
  }
};

namespace conformance {

TEST_P(CollectiveConformance, ReducesEveryTypeAndSize) {
  Run(kRanks, [](Group group) {
    const int rank = group->rank();
    ForEachType([&]<class T>() {
      for (const std::int64_t count : kSizes) {
        SCOPED_TRACE(count);
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMean}) {
          if (reduction == Reduction::kMean && !std::is_floating_point_v<WideOf<T>>) continue;
          const Array<T> numbers(Input<T>(count, rank));
          ExpectDone(group->AllReduce(numbers, reduction));
          EXPECT_EQ(numbers.values(), Rounded<T>(Reduced<T>(count, kRanks, reduction)));
          const auto whole = Reduced<T>(count * kRanks, kRanks, reduction);
          const std::vector<T> my_part = PartOf(Rounded<T>(whole), count, rank);
          Array<T> all(Input<T>(count * kRanks, rank)), mine(count);
          ExpectDone(group->ReduceScatter(mine, all, reduction));
          EXPECT_EQ(mine.values(), my_part);
          all = Array<T>(Input<T>(count * kRanks, rank));
          ExpectDone(group->ReduceScatter(all.Part(rank * count, count), all, reduction));
          EXPECT_EQ(PartOf(all.values(), count, rank), my_part) << "in place";
          if (reduction != Reduction::kSum) continue;
          all = Array<T>(Input<T>(count * kRanks, rank));
          mine = Array<T>(Input<T>(count, rank, /*seed=*/5));
          std::vector<T> sums = mine.values();
          for (std::size_t i = 0; i < sums.size(); ++i) {
            WideOf<T> sum = whole[static_cast<std::size_t>(rank * count) + i];
            // NCCL's sum has the type of its addends, before it is added.
            if (GetParam().kind == GroupKind::kNccl) sum = Widened(Narrowed<T>(sum));
            sums[i] = Narrowed<T>(static_cast<WideOf<T>>(sum + Widened(sums[i])));
          }
          ExpectDone(group->ReduceScatter(mine, all, Reduction::kAddSum));
          EXPECT_EQ(mine.values(), sums) << "added";
        }
      }
    });
  });
}

TEST_P(CollectiveConformance, HasNoMeanOfIntegers) {
  Run(kRanks, [](Group group) {
    ExpectDone(group->Barrier());  // the reduction fails at once: no rank may leave before the others have connected
    const Status mean = group->AllReduce(Array<std::int64_t>(4, 1), Reduction::kMean);
    ASSERT_FALSE(mean);
    EXPECT_EQ(mean.error().code(), Code::kInvalidArgument);
  });
}

TEST_P(CollectiveConformance, CopiesEveryTypeAndSize) {
  Run(kRanks, [](Group group) {
    const int rank = group->rank();
    ForEachType([&]<class T>() {
      for (const std::int64_t count : kSizes) {
        SCOPED_TRACE(count);
        std::vector<std::vector<T>> parts;
        std::vector<T> expected;
        for (int each = 0; each < kRanks; ++each) {
          parts.push_back(Input<T>(count, each));
          expected.insert(expected.end(), parts.back().begin(), parts.back().end());
        }
        Array<T> all(kRanks * count);
        ExpectDone(group->AllGather(all, Array<T>(parts[rank])));
        EXPECT_EQ(all.values(), expected);
        all = Array<T>(kRanks * count);
        std::ranges::copy(parts[rank], all.values().begin() + rank * count);
        ExpectDone(group->AllGather(all, all.Part(rank * count, count)));
        EXPECT_EQ(all.values(), expected) << "in place";

        for (int root = 0; root < kRanks; ++root) {
          const Array<T> told(parts[rank]);
          ExpectDone(group->Broadcast(told, root));
          EXPECT_EQ(told.values(), parts[root]);
        }
        // Each rank sends to the next and receives from the one before it, all of them at once.
        const Array<T> received(count);
        const auto send = group->StartSend(Array<T>(parts[rank]), (rank + 1) % kRanks);
        ExpectDone(group->Receive(received, (rank + kRanks - 1) % kRanks));
        ExpectDone(send->Wait());
        EXPECT_EQ(received.values(), parts[(rank + kRanks - 1) % kRanks]);
      }
    });
  });
}

TEST_P(CollectiveConformance, OperationsInFlightRunInOrder) {
  Run(kRanks, [](Group group) {
    constexpr int kOperations = 40;
    std::vector<Array<std::int64_t>> sums;
    std::vector<Array<std::int32_t>> words;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < kOperations; ++i) {
      sums.emplace_back(i * 37, group->rank() + i);
      operations.push_back(group->StartAllReduce(sums.back()));
      words.emplace_back(i + 1, group->rank() * 100 + i);
      operations.push_back(group->StartBroadcast(words.back(), i % kRanks));
    }
    std::ranges::reverse(operations);
    for (const auto& operation : operations) ExpectDone(operation->Wait());
    for (int i = 0; i < kOperations; ++i) {
      EXPECT_TRUE(sums[i].IsFilledWith(3 + 3 * i));
      EXPECT_TRUE(words[i].IsFilledWith(i % kRanks * 100 + i));
    }
  });
}

TEST_P(CollectiveConformance, MessagesKeepTheirOrder) {
  Run(2, [](Group group) {
    constexpr int kMessages = 30;
    const int peer = 1 - group->rank();
    std::vector<Array<std::int32_t>> boxes;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < kMessages; ++i) {
      boxes.emplace_back(i * 5'000);
      operations.push_back(group->StartReceive(boxes.back(), peer));
    }
    for (int i = 0; i < kMessages; ++i) {
      operations.push_back(group->StartSend(Array<std::int32_t>(i * 5'000, 10 * i + group->rank()), peer));
    }
    for (const auto& operation : operations) ExpectDone(operation->Wait());
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(boxes[i].IsFilledWith(10 * i + peer));
  });
}

TEST_P(CollectiveConformance, MessagesDoNotWaitForThoseOfOtherPeers) {
  Run(kRanks, [](Group group) {
    // In the order in which they are started, each rank's receive would wait for a send behind another receive.
    const int next = (group->rank() + 1) % kRanks, before = (group->rank() + 2) % kRanks;
    const Array<float> from_next(200'000), from_before(200'000), mine(200'000, static_cast<float>(group->rank()));
    const auto first = group->StartReceive(from_next, next);
    const auto second = group->StartAllReduce(Array<float>(3, 1));
    const auto third = group->StartReceive(from_before, before);
    const auto to_before = group->StartSend(mine, before);
    const auto to_next = group->StartSend(mine, next);
    for (const auto* operation : {&first, &second, &third, &to_before, &to_next}) ExpectDone((*operation)->Wait());
    EXPECT_TRUE(from_next.IsFilledWith(static_cast<float>(next)));
    EXPECT_TRUE(from_before.IsFilledWith(static_cast<float>(before)));
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
        const Array<std::int32_t> numbers(100 * i, 1);
        ExpectDone(part->AllReduce(numbers));
        EXPECT_TRUE(numbers.IsFilledWith(members));
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
    const Array<float> box(10);
    const auto receive = group->StartReceive(box, 1);
    const auto all_reduce = group->StartAllReduce(Array<float>(100'000, 1));
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
    const Array<float> box(10);
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
  const bool connects = GetParam().kind != GroupKind::kThreads && GetParam().kind != GroupKind::kDelayed;
  std::latch given_up(1);
  Run(
      2,
      [&](Group group) {
        if (group->rank() == 1) return given_up.wait();  // lives, but does not take part
        const Status status = group->AllReduce(Array<float>(10));
        given_up.count_down();
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code(), Code::kUnavailable);
        EXPECT_NE(status.error().ToString().find("rank 1"), std::string::npos) << status.error().ToString();
      },
      std::chrono::milliseconds(connects ? 5'000 : 200));
}

TEST_P(CollectiveConformance, DifferentOperationsAreErrors) {
  const std::function<Status(Collective&)> kDifferences[] = {
      [](Collective& group) { return group.AllReduce(Array<float>(10 + group.rank())); },
      [](Collective& group) {
        return group.rank() == 0 ? group.AllReduce(Array<float>(10)) : group.AllReduce(Array<std::int32_t>(10));
      },
      [](Collective& group) { return group.Broadcast(Array<float>(10), group.rank()); },
      [](Collective& group) {
        return group.rank() == 0 ? group.AllReduce(Array<float>(10)) : group.Broadcast(Array<float>(10), 0);
      },
      [](Collective& group) {
        return group.rank() == 0 ? group.Send(Array<float>(10), 1) : group.Receive(Array<float>(11), 0);
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
  Elements faulty = Array<float>(4);
  faulty.fault = "not contiguous";
  Elements of_no_type = Array<std::uint8_t>(4);
  of_no_type.type = ElementType::kBytes;
  const std::function<Status(Collective&)> kMistakes[] = {
      [&](Collective& group) { return group.AllReduce(faulty); },
      [&](Collective& group) { return group.AllReduce(of_no_type); },
      [](Collective& group) { return group.AllReduce(Array<float>(4), Reduction::kAddSum); },
      [](Collective& group) { return group.AllReduce({}); },
      [](Collective& group) { return group.AllGather(Array<float>(5), Array<float>(2)); },
      [](Collective& group) { return group.AllGather(Array<float>(4), Array<std::int32_t>(2)); },
      [](Collective& group) { return group.ReduceScatter(Array<float>(4), Array<float>(4)); },
      [](Collective& group) { return group.Broadcast(Array<float>(4), 2); },
      [](Collective& group) { return group.Send(Array<float>(4), group.rank()); }};
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

}  // namespace conformance
}  // namespace millrace::collectives
