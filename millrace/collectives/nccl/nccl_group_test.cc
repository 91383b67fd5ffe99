#include "millrace/collectives/nccl/nccl_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/parallel/nccl/connect_gpus.h"

namespace millrace::engine {
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
                                             .takes = [](const at::Tensor& t) { return t.is_floating_point(); },
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
    EXPECT_TRUE(group.AllReduce(at::ones({4})));
    together.arrive_and_wait();
    EXPECT_TRUE(group.AllReduce(at::ones({4}, at::kLong))) << "over the inner group";
    together.arrive_and_wait();
    nccl->Hang(1);
    const Status hung = group.AllReduce(at::ones({4}));
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
    EXPECT_TRUE(group.AllReduce(at::ones({4})));
    together.arrive_and_wait();
    nccl->Hang(1);
    const TimePoint start = SystemClock().Now();
    const auto hangs = group.StartAllReduce(at::ones({4}));
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
    EXPECT_TRUE(group.AllReduce(at::ones({4})));
    together.arrive_and_wait();
    nccl->Hang(2);
    const auto hangs = group.StartAllReduce(at::ones({4}));
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
    const Status differs = (*pair)->AllReduce(at::ones({4 + group.rank()}));
    ASSERT_FALSE(differs);
    EXPECT_THAT(differs.error().ToString(),
                AnyOf(HasSubstr("rank 10 started"), HasSubstr("rank 30 started"), HasSubstr("reports")));
  });
}

TEST(NcclGroup, AddsFloat16) {
  RunOver(std::make_shared<FakeNccl>(), std::chrono::seconds(60), [](Collective& group) {
    const at::Tensor sum = at::full({5}, group.rank(), at::kHalf);
    ASSERT_TRUE(group.AllReduce(sum));
    EXPECT_TRUE(sum.equal(at::full({5}, 3, at::kHalf)));
    at::Tensor mean = at::full({6}, group.rank(), at::kHalf), part = at::empty({2}, at::kHalf);
    ASSERT_TRUE(group.ReduceScatter(part, mean, Reduction::kMean));
    EXPECT_TRUE(part.equal(at::full({2}, 1, at::kHalf)));
  });
}

TEST(NcclGroup, WorksWhileMessagesPassInBothDirections) {
  RunOver(std::make_shared<FakeNccl>(), std::chrono::seconds(60), [](Collective& group) {
    const int next = (group.rank() + 1) % 3, before = (group.rank() + 2) % 3;
    std::vector<at::Tensor> boxes, sums;
    std::vector<Collective::Operation> operations;
    for (int i = 0; i < 50; ++i) {
      operations.push_back(group.StartSend(at::full({100}, 10 * i + group.rank(), at::kFloat), next));
      operations.push_back(group.StartSend(at::full({i}, group.rank(), at::kFloat), before));
      sums.push_back(at::full({64}, i, at::kFloat));
      operations.push_back(group.StartAllReduce(sums.back()));
      boxes.push_back(at::zeros({100}));
      operations.push_back(group.StartReceive(boxes.back(), before));
      operations.push_back(group.StartReceive(at::zeros({i}), next));
    }
    for (const auto& operation : operations) ASSERT_TRUE(operation->Wait());
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(boxes[i].equal(at::full({100}, 10 * i + before, at::kFloat)));
      EXPECT_TRUE(sums[i].equal(at::full({64}, 3 * i, at::kFloat)));
    }
  });
}

TEST(ConnectGpus, AllRanksGoThroughTheHostIfOneMust) {
  RunRanks(GroupKind::kThreads, 2, [](std::unique_ptr<Collective> inner) {
    const bool shares = inner->rank() == 0;
    const auto connected = ConnectGpus(std::move(inner), at::Device(at::kCUDA, 0), shares, std::chrono::seconds(60));
    ASSERT_TRUE(connected) << connected.error().ToString();
    EXPECT_THAT(connected->through_host, AnyOf(HasSubstr("share GPUs"), HasSubstr("another rank"), HasSubstr("nccl")));
    EXPECT_EQ(connected->through_host == "ranks share GPUs", shares);
    at::Tensor sum = at::ones({3});
    EXPECT_TRUE(connected->group->AllReduce(sum));
    EXPECT_TRUE(sum.equal(at::full({3}, 2, at::kFloat)));
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
}  // namespace millrace::engine
