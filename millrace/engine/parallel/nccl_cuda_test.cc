// NCCL itself. What needs several GPUs skips itself where there is one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#if __has_include(<nccl.h>)
#include <nccl.h>
#define MILLRACE_HAS_NCCL_HEADER
#endif

#include "millrace/collectives/nccl/communicator.h"
#include "millrace/collectives/nccl/nccl_group.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parallel/connect_gpus.h"

namespace millrace::engine {
namespace {

using namespace collectives;

#ifdef MILLRACE_HAS_NCCL_HEADER
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(int(NcclResult::kInProgress) == ncclInProgress && int(NcclReduction::kMean) == ncclAvg &&
              int(NcclReduction::kMax) == ncclMax && int(NcclReduction::kSum) == ncclSum);
static_assert(int(NcclType::kUint8) == ncclUint8 && int(NcclType::kInt32) == ncclInt32 &&
              int(NcclType::kInt64) == ncclInt64 && int(NcclType::kFloat16) == ncclFloat16 &&
              int(NcclType::kFloat32) == ncclFloat32 && int(NcclType::kFloat64) == ncclFloat64 &&
              int(NcclType::kBfloat16) == ncclBfloat16);
#endif

constexpr auto kTimeout = std::chrono::seconds(60);

TEST(NcclOnAGpu, OneRankConnectsAndAdds) {
  if (GpuCount() < 1) GTEST_SKIP() << "no GPU";
  const at::Device device(at::kCUDA, 0);
  const auto library = LoadNccl();
  ASSERT_TRUE(library) << library.error().ToString();
  const auto streams = MakeStreamDevice(device);
  ASSERT_TRUE(streams->UseHere());
  NcclId id{};
  ASSERT_EQ((*library)->GetUniqueId(&id), NcclResult::kSuccess);
  const auto connected = Communicator::Connect(*library, id, 1, 0, SystemClock().Now() + kTimeout, {});
  ASSERT_TRUE(connected) << connected.error().ToString();
  const at::Tensor tensor = at::arange(1'000'003, at::device(device).dtype(at::kFloat)), before = tensor.clone();
  const auto stream = streams->NewStream().value();
  ASSERT_TRUE(stream->WaitFor(*streams->MarkCurrent().value()));
  const Status given = (*connected)
                           ->Launch(
                               [&](NcclApi& api, NcclHandle with) {
                                 return api.AllReduce(tensor.data_ptr(), 1'000'003, NcclType::kFloat32,
                                                      NcclReduction::kSum, with, stream->handle());
                               },
                               SystemClock().Now() + kTimeout);
  ASSERT_TRUE(given) << given.error().ToString();
  const auto end = stream->RecordPoint().value();
  ASSERT_TRUE(end->HoldCurrent());
  EXPECT_TRUE(tensor.equal(before));
  EXPECT_TRUE(end->IsPassed().value());
  EXPECT_TRUE((*connected)->Look());
}

/// Runs `work` on threads, each with a GPU.
void RunOnGpus(const std::function<void(Collective&, at::Device)>& work) {
  RunRanks(GroupKind::kThreads, GpuCount(), [&](std::unique_ptr<Collective> inner) {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(inner->rank()));
    const auto library = LoadNccl();
    ASSERT_TRUE(library) << library.error().ToString();
    auto group =
        MakeNcclGroup(std::move(inner), {.api = *library, .device = MakeStreamDevice(device), .timeout = kTimeout});
    ASSERT_TRUE(group) << group.error().ToString();
    work(**group, device);
  });
}

TEST(NcclOnGpus, DoEveryOperation) {
  if (GpuCount() < 2) GTEST_SKIP() << "one GPU: NCCL wants one for each rank";
  RunOnGpus([](Collective& group, at::Device device) {
    const int ranks = group.size(), rank = group.rank();
    const auto on = [&](at::ScalarType type) { return at::device(device).dtype(type); };
    for (const at::ScalarType type :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt, at::kByte}) {
      SCOPED_TRACE(c10::toString(type));
      for (const std::int64_t n : {0, 1, 1'001, 250'007}) {
        at::Tensor sum = at::full({n}, rank, on(type));
        ASSERT_TRUE(group.AllReduce(sum));
        EXPECT_TRUE(sum.equal(at::full({n}, ranks * (ranks - 1) / 2, on(type))));
        at::Tensor all = at::empty({n * ranks}, on(type));
        ASSERT_TRUE(group.AllGather(all, at::full({n}, rank, on(type))));
        EXPECT_TRUE(all.equal(at::arange(ranks, on(type)).repeat_interleave(n)));
        at::Tensor mine = at::full({n}, 3, on(type));
        ASSERT_TRUE(group.ReduceScatter(mine, all, Reduction::kAddSum));
        EXPECT_TRUE(mine.equal(at::full({n}, 3 + ranks * rank, on(type))));
        at::Tensor told = at::full({n}, rank, on(type));
        ASSERT_TRUE(group.Broadcast(told, ranks - 1));
        EXPECT_TRUE(told.equal(at::full({n}, ranks - 1, on(type))));
        at::Tensor box = at::zeros({n}, on(type));
        const auto send = group.StartSend(at::full({n}, rank, on(type)), (rank + 1) % ranks);
        ASSERT_TRUE(group.Receive(box, (rank + ranks - 1) % ranks));
        ASSERT_TRUE(send->Wait());
        EXPECT_TRUE(box.equal(at::full({n}, (rank + ranks - 1) % ranks, on(type))));
      }
    }
    ASSERT_TRUE(group.Barrier());
  });
}

TEST(NcclOnGpus, GiveTheSameBitsEachTime) {
  if (GpuCount() < 2) GTEST_SKIP() << "one GPU: NCCL wants one for each rank";
  RunOnGpus([](Collective& group, at::Device device) {
    at::Tensor first;
    for (int i = 0; i < 5; ++i) {
      const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group.rank()));
      at::Tensor sum = at::randn({3'000'017}, generator, at::kFloat).to(device);
      ASSERT_TRUE(group.AllReduce(sum));
      if (i == 0) first = sum.clone();
      EXPECT_TRUE(sum.equal(first));
    }
  });
}

TEST(NcclOnGpus, ALostRankIsAnErrorSoon) {
  if (GpuCount() < 2) GTEST_SKIP() << "one GPU: NCCL wants one for each rank";
  RunOnGpus([](Collective& group, at::Device device) {
    ASSERT_TRUE(group.AllReduce(at::ones({10}, device)));
    if (group.rank() == 1) return;  // leaves
    const TimePoint start = SystemClock().Now();
    Status status;
    while (status && SystemClock().Now() - start < std::chrono::seconds(5))
      status = group.AllReduce(at::ones({10}, device));
    EXPECT_FALSE(status);
    EXPECT_LT(SystemClock().Now() - start, std::chrono::seconds(3));
  });
}

}  // namespace
}  // namespace millrace::engine
