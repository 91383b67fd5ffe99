// Copies, exchanges and memory of a GPU.
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/device/device_reader.h"
#include "millrace/engine/device/host_copy.h"
#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/parameters/memory.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {
namespace {

class DeviceCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::cuda::is_available()) GTEST_SKIP() << "no GPU";
    device_ = ChooseDevice("cuda", 0).value();
  }
  at::Device device_ = at::kCPU;
};

TEST_F(DeviceCudaTest, HasANameAndMemory) {
  EXPECT_FALSE(DeviceName(device_).empty());
  EXPECT_GT(DeviceMemoryInUse(device_), 0U);
  EXPECT_EQ(ChooseDevice("auto", GpuCount()).value(), device_) << "more ranks than GPUs share them";
  EXPECT_TRUE(DeviceName(at::kCPU).empty());
}

TEST_F(DeviceCudaTest, CopiesWhatATensorHasNow) {
  const at::Tensor host = at::arange(1 << 20, at::kLong);
  const at::Tensor there = ToDevice(host, device_);
  host.fill_(-1);
  EXPECT_TRUE(there.device().is_cuda());
  EXPECT_TRUE(there.cpu().equal(at::arange(1 << 20, at::kLong)));
}

/// A snapshot has what was there when it was asked for, however long the GPU still computes it, and in all of its
/// parts.
TEST_F(DeviceCudaTest, ReadsBehindWhatIsUnderWay) {
  constexpr std::int64_t kElements = (40 << 20) / 4 + 3;  // several pinned buffers, and a rest
  at::Tensor matrix = at::ones({4096, 4096}, at::TensorOptions().device(device_)) / 4096;
  const at::Tensor values = at::zeros({kElements}, matrix.options());
  for (int i = 0; i < 30; ++i) matrix = at::mm(matrix, matrix);  // takes longer than starting a read
  values.copy_(at::arange(kElements, matrix.options()) + matrix[0][0] * 4096 - 1);
  DeviceReader reader(device_);
  reader.MarkWritten();
  at::Tensor read = at::full({kElements}, -1, at::kFloat);
  const MutableByteSpan to = BytesOf(read);
  const ByteSpan from(static_cast<const std::byte*>(values.data_ptr()), values.nbytes());
  const std::size_t half = from.size() / 8 * 4;
  Status first, second;
  {
    const std::jthread other([&] { first = reader.Read(to.first(half), from.first(half)); });
    second = reader.Read(to.subspan(half), from.subspan(half));
  }
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(read.equal(values.cpu()));
}

/// The state of an optimizer may be in memory of the host that kernels write.
TEST_F(DeviceCudaTest, ReadsPinnedMemoryBehindWhatIsUnderWay) {
  constexpr std::int64_t kElements = (40 << 20) / 4 + 3;
  at::Tensor matrix = at::ones({4096, 4096}, at::TensorOptions().device(device_)) / 4096;
  const at::Tensor pinned = EmptyOnHost({kElements}, at::kFloat, device_);
  for (int i = 0; i < 30; ++i) matrix = at::mm(matrix, matrix);  // takes longer than starting a read
  pinned.copy_(at::arange(kElements, matrix.options()) + matrix[0][0] * 4096 - 1, /*non_blocking=*/true);
  DeviceReader reader(device_);
  reader.MarkWritten();
  at::Tensor read = at::full({kElements}, -1, at::kFloat);
  ASSERT_TRUE(reader.Read(BytesOf(read), {static_cast<const std::byte*>(pinned.data_ptr()), pinned.nbytes()}));
  EXPECT_TRUE(read.equal(at::arange(kElements, at::kFloat)));
}

/// The copies see what was computed before them, and what is computed behind them sees the copies, whatever takes the
/// freed memory in between.
TEST_F(DeviceCudaTest, TensorsWaitOnTheHost) {
  const c10::Stream copies = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  const auto of = [&](std::int64_t i) {
    return at::full({1 << 22}, i, at::TensorOptions().dtype(at::kLong).device(device_));
  };
  std::vector<std::unique_ptr<HostCopy>> waiting;
  for (std::int64_t i = 0; i < 20; ++i) waiting.push_back(std::make_unique<HostCopy>(of(i), copies));
  for (std::int64_t i = 19; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    const at::Tensor taken = waiting[at]->TakeTensor();
    if (i > 0) waiting[at - 1]->Fetch();
    const at::Tensor other = of(-1);
    EXPECT_TRUE(taken.eq(i).all().item<bool>()) << i;
  }
  // What was never taken is freed.
  HostCopy left(of(1), copies);
  left.Fetch();
}

TEST_F(DeviceCudaTest, ViewsStayValidWhileMemoryComesAndGoes) {
  const at::Tensor tensor = TensorWithoutMemory(1 << 20, at::kFloat, device_);
  const at::Tensor part = tensor.narrow(0, 100, 50);
  EXPECT_EQ(MemoryBytes(tensor), 0);
  for (int turn = 0; turn < 3; ++turn) {
    AllocateMemory(tensor);
    EXPECT_EQ(MemoryBytes(tensor), 4 << 20);
    tensor.fill_(turn);
    EXPECT_EQ(part.sum().item<float>(), 50.0F * static_cast<float>(turn));
    FreeMemory(tensor);
  }
  EXPECT_EQ(MemoryBytes(part), 0);
}

TEST_F(DeviceCudaTest, RanksThatShareAGpuExchangeItsTensors) {
  collectives::RunRanks(collectives::GroupKind::kThreads, 2, [device = device_](std::unique_ptr<Collective> inner) {
    const auto group = StageThroughHost(std::move(inner), device);
    const int rank = group->rank();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto options = at::TensorOptions().device(device).dtype(type);
      const at::Tensor sum = at::full({1'001}, rank + 1, options);
      ASSERT_TRUE(group->AllReduce(sum));
      EXPECT_TRUE(sum.equal(at::full({1'001}, 3, options)));
      const at::Tensor all = at::full({2'000}, rank + 1, options);
      ASSERT_TRUE(group->AllGather(all, all.narrow(0, rank * 1'000, 1'000)));
      EXPECT_EQ(all.to(at::kFloat).sum().item<float>(), 3'000);
      const at::Tensor mine = all.narrow(0, rank * 1'000, 1'000);
      ASSERT_TRUE(group->ReduceScatter(mine, all));
      EXPECT_TRUE(mine.equal(at::full({1'000}, 2 * (rank + 1), options)));
      const at::Tensor told = at::full({10}, rank, options);
      ASSERT_TRUE(group->Broadcast(told, 1));
      EXPECT_TRUE(told.equal(at::full({10}, 1, options)));
      at::Tensor box = at::zeros({10}, options);
      const auto send = group->StartSend(at::full({10}, rank + 5, options), 1 - rank);
      ASSERT_TRUE(group->Receive(box, 1 - rank));
      ASSERT_TRUE(send->Wait());
      EXPECT_TRUE(box.equal(at::full({10}, 6 - rank, options)));
    }
    const auto part = group->Duplicate("again");
    ASSERT_TRUE(part);
    const at::Tensor sum = at::ones({3}, at::TensorOptions().device(device));
    ASSERT_TRUE((*part)->AllReduce(sum));
    EXPECT_EQ(sum.sum().item<float>(), 6);
  });
}

TEST_F(DeviceCudaTest, TooMuchMemoryIsAnErrorWithFigures) {
  const auto failed = CatchTorch("a test", [&] {
    return at::empty({std::int64_t{1} << 42}, at::TensorOptions().device(device_).dtype(at::kByte));
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(failed.error().message().find("a test: out of GPU memory: 4096.00 GiB were asked for, "), 0U)
      << failed.error().ToString();
}

}  // namespace
}  // namespace millrace::engine
