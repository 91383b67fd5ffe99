#include "millrace/collectives/nccl/nccl_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

#include "millrace/collectives/testing/array.h"
#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Runs `work` on the ranks 10, 20, 30 of a job, over an NCCL that the test may break.
void RunOver(const std::shared_ptr<FakeNccl>& nccl, Duration timeout, const std::function<void(Collective&)>& work) {
  RunRanks(
      GroupKind::kThreads, 3,
      [&](std::unique_ptr<Collective> inner) {
        auto group =
            MakeNcclGroup(std::move(inner), {.api = nccl,
                                             .device = std::make_shared<FakeStreams>(),
                                             .timeout = timeout,
                                             .takes = [](const Elements& e) { return IsFloatingPoint(e.type); },
                                             .in_job = {10, 20, 30}});
        ASSERT_TRUE(group) << group.error().ToString();
        work(**group);
      },
      timeout);
}

TEST(NcclGroup, AnOperationThatHangsIsAnErrorAfterTheTimeout) {
  const auto nccl = std::make_shared<FakeNccl>();
  std::barrier together(3);
  RunOver(nccl, std::chrono::seconds(4), [&](Collective& group) {
    EXPECT_TRUE(group.AllReduce(Array<float>(4, 1)));
    together.arrive_and_wait();
    EXPECT_TRUE(group.AllReduce(Array<std::int64_t>(4, 1))) << "over the inner group";
    together.arrive_and_wait();
    nccl->Hang(1);
    const Status hung = group.AllReduce(Array<float>(4, 1));
    ASSERT_FALSE(hung);
    EXPECT_EQ(hung.error().code(), Code::kUnavailable);
    EXPECT_THAT(hung.error().ToString(), AnyOf(HasSubstr("did not end within 4000 ms"), HasSubstr("rank")));
    EXPECT_FALSE(group.Barrier()) << "the inner group fails, too";
  });
}

TEST(NcclGroup, ARankThatGivesUpEndsAnOperationUnderWay) {
  const auto nccl = std::make_shared<FakeNccl>();
  std::barrier together(3);
  RunOver(nccl, std::chrono::seconds(60), [&](Collective& group) {
    EXPECT_TRUE(group.AllReduce(Array<float>(4, 1)));
    together.arrive_and_wait();
    nccl->Hang(1);
    const TimePoint start = SystemClock().Now();
    const auto hangs = group.StartAllReduce(Array<float>(4, 1));
    if (group.rank() == 1) group.Abort(Error(Code::kNotFound, "no data"));
    const Status status = hangs->Wait();
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().ToString(), AnyOf(HasSubstr("no data"), HasSubstr("rank")));
    EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(2));
  });
}

TEST(NcclGroup, WhatNcclReportsLaterIsAnError) {
  const auto nccl = std::make_shared<FakeNccl>();
  std::barrier together(3);
  RunOver(nccl, std::chrono::seconds(60), [&](Collective& group) {
    EXPECT_TRUE(group.AllReduce(Array<float>(4, 1)));
    together.arrive_and_wait();
    nccl->Hang(2);
    const auto hangs = group.StartAllReduce(Array<float>(4, 1));
    nccl->LoseConnections();
    const Status status = hangs->Wait();
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().ToString(), AnyOf(HasSubstr("NCCL: a failure of the tests"), HasSubstr("rank")));
  });
}

TEST(NcclGroup, ARankThatCannotConnectIsAnErrorOfAll) {
  const auto nccl = std::make_shared<FakeNccl>();
  nccl->RefuseToConnect(1);
  RunRanks(GroupKind::kThreads, 3, [&](std::unique_ptr<Collective> inner) {
    const TimePoint start = SystemClock().Now();
    const auto group =
        MakeNcclGroup(std::move(inner),
                      {.api = nccl, .device = std::make_shared<FakeStreams>(), .timeout = std::chrono::seconds(60)});
    ASSERT_FALSE(group);
    EXPECT_THAT(group.error().ToString(), AnyOf(HasSubstr("a failure of the tests"), HasSubstr("rank")));
    EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(5));
  });
}

TEST(NcclGroup, ErrorsNameRanksOfTheJob) {
  RunOver(std::make_shared<FakeNccl>(), std::chrono::seconds(60), [](Collective& group) {
    const std::vector<int> members{2, 0};
    if (group.rank() == 1) return;
    const auto pair = group.Split("pair", members);
    ASSERT_TRUE(pair) << pair.error().ToString();
    const Status differs = (*pair)->AllReduce(Array<float>(4 + group.rank()));
    ASSERT_FALSE(differs);
    EXPECT_THAT(differs.error().ToString(),
                AnyOf(HasSubstr("rank 10 started"), HasSubstr("rank 30 started"), HasSubstr("reports")));
  });
}

Elements Halves(std::vector<_Float16>& values) {
  return {values.data(), ElementType::kFloat16, static_cast<std::int64_t>(values.size())};
}

TEST(NcclGroup, AddsFloat16) {
  RunOver(std::make_shared<FakeNccl>(), std::chrono::seconds(60), [](Collective& group) {
    const auto rank = static_cast<_Float16>(group.rank());
    std::vector<_Float16> sum(5, rank), all(6, rank), part(2);
    ASSERT_TRUE(group.AllReduce(Halves(sum)));
    EXPECT_TRUE(sum == std::vector<_Float16>(5, 3));
    ASSERT_TRUE(group.ReduceScatter(Halves(part), Halves(all), Reduction::kMean));
    EXPECT_TRUE(part == std::vector<_Float16>(2, 1));
  });
}

TEST(NcclGroup, WorksWhileMessagesPassInBothDirections) {
  RunOver(std::make_shared<FakeNccl>(), std::chrono::seconds(60), [](Collective& group) {
    const int next = (group.rank() + 1) % 3, before = (group.rank() + 2) % 3;
    std::vector<Array<float>> boxes, sums;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < 50; ++i) {
      operations.push_back(group.StartSend(Array<float>(100, static_cast<float>(10 * i + group.rank())), next));
      operations.push_back(group.StartSend(Array<float>(i, static_cast<float>(group.rank())), before));
      sums.emplace_back(64, static_cast<float>(i));
      operations.push_back(group.StartAllReduce(sums.back()));
      boxes.emplace_back(100);
      operations.push_back(group.StartReceive(boxes.back(), before));
      operations.push_back(group.StartReceive(Array<float>(i), next));
    }
    for (const auto& operation : operations) ASSERT_TRUE(operation->Wait());
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(boxes[i].IsFilledWith(static_cast<float>(10 * i + before)));
      EXPECT_TRUE(sums[i].IsFilledWith(static_cast<float>(3 * i)));
    }
  });
}

TEST(NcclLibrary, IsFoundOrSaysWhatIsMissing) {
  const auto library = LoadNccl();
  if (library) {
    NcclId id{};
    EXPECT_EQ((*library)->GetUniqueId(&id), NcclResult::kSuccess);
  } else {
    EXPECT_EQ(library.error().code(), Code::kUnavailable);
    EXPECT_THAT(library.error().ToString(), HasSubstr("libnccl"));
  }
}

}  // namespace
}  // namespace millrace::collectives
