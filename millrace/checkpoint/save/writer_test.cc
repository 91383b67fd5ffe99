// Saving beside the caller: when tensors may change, how long it waits, what it takes and what it tells.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>

#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::GateGroup;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSecond;
using testing::State;

class WriterTest : public testing::CheckpointTest {};

TEST_F(WriterTest, TheManifestSaysWhoWroteItAfterWhat) {
  State state = State::Random(1);
  Writer::Options options = Options();
  options.written_by = LocalProvenance("test", "1.2");
  options.parent = CheckpointId{3, "0123456789abcdef"};
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(writer->Save(4, Whole(state), {}, {.metrics = {{"loss", 0.5}, {"broken", std::nan("")}}}));
  ASSERT_TRUE(writer->Wait());
  ASSERT_TRUE(Save(*writer, 5, state));
  auto first = MustOpen(4), second = MustOpen(5);
  EXPECT_EQ(first->manifest().written_by, options.written_by);
  EXPECT_EQ(first->manifest().written_by.program, "test");
  EXPECT_FALSE(first->manifest().written_by.host.empty());
  EXPECT_EQ(first->manifest().parent, options.parent);
  EXPECT_EQ(first->manifest().metrics, (std::map<std::string, double>{{"loss", 0.5}}));
  EXPECT_EQ(second->manifest().parent, first->manifest().id());
}

TEST_F(WriterTest, TrainingMayGoOnAsSoonAsSaveReturns) {
  State state = State::Random(1), copy = state;
  auto gate = std::make_shared<GateGroup>(0);  // before a byte is uploaded
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  for (auto& [name, tensor] : state.tensors) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xee});
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  ExpectGood(1, copy);
}

TEST_F(WriterTest, TheCopyOfAStartedSaveIsThatOfItsStep) {
  State state = State::Random(1, 6, 20'000);
  auto gate = std::make_shared<GateGroup>(0);
  auto writer = Open(gate);
  EXPECT_FALSE(writer->busy());
  EXPECT_EQ(writer->WaitCopied(), Duration::zero()) << "nothing to wait for";
  const State saved = state;
  ASSERT_TRUE(writer->Start(1, Whole(state), {}));
  writer->WaitCopied();
  for (auto& [name, tensor] : state.tensors) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xee});
  EXPECT_TRUE(writer->busy()) << "the upload has not begun";
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  EXPECT_FALSE(writer->busy());
  ExpectGood(1, saved);
}

TEST_F(WriterTest, ReadsSlicesOfAnotherMemory) {
  State state = State::Random(1, 6, 20'000);
  std::atomic<std::uint64_t> read = 0;
  std::atomic<bool> broken = false;
  Writer::Options options = Options();
  options.read_slices = [&](MutableByteSpan to, ByteSpan from) -> Status {
    if (broken) return Fail(Code::kUnavailable, "the device is gone");
    read += from.size();
    std::ranges::copy(from, to.begin());
    return {};
  };
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(Save(*writer, 1, state));
  ExpectGood(1, state);
  std::uint64_t bytes = 0;
  for (const auto& slice : Whole(state)) bytes += slice.bytes.size();
  EXPECT_EQ(read, bytes);
  broken = true;
  const Status failed = Save(*writer, 2, state);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().ToString(), HasSubstr("the device is gone"));
  broken = false;
  ASSERT_TRUE(Save(*writer, 3, state));
  ExpectGood(3, state);
}

TEST_F(WriterTest, ASlowRateIsKept) {
  clock_.AdvanceOnSleep(true);
  State state = State::Random(1, 6, 40'000);
  Writer::Options options = Options();
  options.bandwidth = 10'000;
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  const auto stats = writer->Wait();
  ASSERT_TRUE(stats);
  const double seconds = std::chrono::duration<double>((*stats)->total).count();
  const auto bytes = static_cast<double>((*stats)->bytes);
  EXPECT_GE(seconds, (bytes - 8192) / 10'000) << "the last part may go out at the end";
  EXPECT_LE(seconds, bytes / 10'000 + 1);
  ExpectGood(1, state);
}

TEST_F(WriterTest, AnUploadThatTakesTooLongEndsTheSaveAndLeavesNothing) {
  clock_.AdvanceOnSleep(true);
  State state = State::Random(1, 6, 40'000);
  Writer::Options options = Options();
  options.bandwidth = 10'000;
  options.upload_limit = kSecond;
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  const auto saved = writer->Wait();
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), Code::kDeadlineExceeded) << saved.error().ToString();
  EXPECT_THAT(Keys(), IsEmpty());
  EXPECT_THAT(*object::ListUploads(*store_, ""), IsEmpty());
}

/// Remembers how much was reported.
class CountingGroup final : public RankExchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    reported.push_back(mine.size());
    return std::vector{std::move(mine)};
  }
  Result<std::string> Broadcast(std::string text) override { return text; }
  std::vector<std::size_t> reported;
};

TEST_F(WriterTest, WhatRankZeroKnowsIsNotSaidAgain) {
  State state = State::Random(1, 60, 400), other = State::Random(2, 60, 400);
  auto group = std::make_shared<CountingGroup>();
  auto writer = Open(group);
  ASSERT_TRUE(Save(*writer, 1, state));
  ASSERT_TRUE(Save(*writer, 2, state));
  EXPECT_FALSE(Save(*writer, 2, state)) << "taken";
  ASSERT_TRUE(Save(*writer, 3, state));
  ASSERT_TRUE(Save(*writer, 4, other));
  ASSERT_TRUE(Save(*writer, 5, state));
  ASSERT_TRUE(Save(*writer, 6, state));
  const auto& sizes = group->reported;  // but for the one that found its step taken
  ASSERT_EQ(sizes.size(), 6u);
  EXPECT_LT(sizes[1], sizes[0] / 4);
  EXPECT_LT(sizes[2], sizes[0] / 4);
  EXPECT_GT(sizes[3], sizes[1] * 4) << "other tensors";
  EXPECT_GT(sizes[4], sizes[1] * 4);
  EXPECT_LT(sizes[5], sizes[0] / 4);
  EXPECT_THAT(Steps(), ElementsAre(4, 5, 6));
  ExpectGood(4, other);
  ExpectGood(5, state);
  ExpectGood(6, state);
  EXPECT_EQ(MustOpen(6)->manifest().Serialize().size(), MustOpen(5)->manifest().Serialize().size());
}

TEST_F(WriterTest, WaitTellsOnceAndDestructionWaits) {
  State state = State::Random(1);
  std::vector<std::uint64_t> done;
  Writer::Options options = Options();
  options.on_done = [&](const Result<SaveStats>& stats) { done.push_back(stats ? stats->step : 0); };
  options.snapshot_bytes = 1 * kMiB;
  {
    auto writer = Open(SingleRankExchange(), options);
    EXPECT_EQ(*writer->Wait(), std::nullopt);
    ASSERT_TRUE(writer->Save(1, Whole(state), {}));
    EXPECT_EQ((*writer->Wait())->step, 1u);
    EXPECT_EQ(*writer->Wait(), std::nullopt);
    ASSERT_TRUE(writer->Save(2, Whole(state), {}));
  }
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  EXPECT_THAT(done, ElementsAre(1, 2));
}

TEST_F(WriterTest, TheFirstSaveFindsItsMemoryReady) {
  State state = State::Random(1);
  Writer::Options options = Options();
  for (const SaveSlice& slice : Whole(state)) options.snapshot_bytes += slice.bytes.size();
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(writer->Wait());
  const std::uint64_t reserved = budget_.used();
  EXPECT_EQ(reserved, options.snapshot_bytes + 1 * kMiB);
  ASSERT_TRUE(Save(*writer, 1, state));
  EXPECT_EQ(budget_.used(), reserved);
  EXPECT_EQ(budget_.peak(), reserved) << "the snapshot is all that is taken";
}

TEST_F(WriterTest, TheErrorOfASaveSurfacesOnceAndTheNextOneIsUnderWay) {
  State state = State::Random(1);
  auto writer = Open();
  store_->Add({.operation = object::Operation::kHead, .fault = {.code = Code::kUnavailable}});
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  auto second = writer->Save(2, Whole(state), {});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().ToString(), HasSubstr("step 1"));
  auto waited = writer->Wait();
  ASSERT_TRUE(waited) << waited.error().ToString();
  EXPECT_EQ((*waited)->step, 2u);
}

TEST_F(WriterTest, ASnapshotBeyondTheBudgetSaysSo) {
  State state;
  state.tensors["model/x"] = {{DType::kU8, {1 << 20}}, std::vector<std::byte>(1 << 20)};
  MemoryBudget small(512 * kKiB);
  auto writer = *Writer::Open(connection_, SingleRankExchange(), small, Options());
  auto saved = Save(*writer, 1, state);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(saved.error().ToString(), HasSubstr("--memory-budget"));
}

}  // namespace
}  // namespace millrace::checkpoint
