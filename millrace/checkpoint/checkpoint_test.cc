// Writer, Reader and the catalogue over a memory store: what is saved comes back, and nothing else is ever seen.
#include "millrace/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <latch>
#include <set>
#include <thread>

#include "millrace/base/crc.h"
#include "millrace/checkpoint/commit.h"
#include "millrace/checkpoint/layout.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/fault/fault_store.h"
#include "millrace/object/memory/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::State;
using testing::StoreConnection;
using testing::ThreadRanks;

constexpr const char* kUrl = "s3://bucket/runs/a";
constexpr auto kSecond = std::chrono::seconds(1);

/// Stops rank 0 on its way into exchange number `at` (0: attempt, 1: reports, 2: outcome) until the test lets it go on.
class GateGroup final : public Group {
 public:
  explicit GateGroup(int at) : at_(at) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    Pass();
    return std::vector{std::move(mine)};
  }
  Result<std::string> Broadcast(std::string text) override {
    Pass();
    return text;
  }
  void AwaitArrival() { arrived_.wait(); }
  void Open() { open_.count_down(); }

 private:
  void Pass() {
    if (next_++ != at_) return;
    arrived_.count_down();
    open_.wait();
  }
  const int at_;
  int next_ = 0;
  std::latch arrived_{1}, open_{1};
};

class CheckpointTest : public ::testing::Test {
 protected:
  static object::MemoryStoreOptions StoreOptions(Clock* clock) {
    object::MemoryStoreOptions options;
    options.limits.min_part = 4096;
    options.clock = clock;
    return options;
  }
  Writer::Options Options() {
    Writer::Options options;
    options.url = kUrl;
    options.part_bytes = 8192;
    options.chunk_bytes = 4096;
    options.clock = &clock_;
    return options;
  }
  std::unique_ptr<Writer> Open(std::shared_ptr<Group> group, Writer::Options options) {
    auto writer = Writer::Open(connection_, std::move(group), budget_, std::move(options));
    EXPECT_TRUE(writer) << (writer ? "" : writer.error().ToString());
    return *std::move(writer);
  }
  std::unique_ptr<Writer> Open(std::shared_ptr<Group> group = SingleProcessGroup()) {
    return Open(std::move(group), Options());
  }
  static std::vector<SavePiece> Whole(const State& state) { return state.Share(1, 0)[0]; }

  /// Saves and waits; every save has a time of its own.
  Status Save(Writer& writer, std::uint64_t step, const State& state, const Json& meta = {}) {
    clock_.Advance(kSecond);
    auto saved = writer.Save(step, Whole(state), meta);
    auto waited = writer.Wait();
    if (!saved) return Fail(saved.error());
    if (!waited) return Fail(waited.error());
    return {};
  }
  /// All ranks, each on a thread, with `pieces[rank]`; yields what each rank got.
  std::vector<Result<std::optional<SaveStats>>> SaveOnRanks(std::uint64_t step,
                                                            const std::vector<std::vector<SavePiece>>& pieces) {
    clock_.Advance(kSecond);
    ThreadRanks ranks(static_cast<int>(pieces.size()));
    std::vector<std::unique_ptr<Writer>> writers;
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      writers.push_back(Open(ranks.Rank(static_cast<int>(rank))));
      EXPECT_TRUE(writers.back()->Save(step, pieces[rank], {{"rank", rank}}));
    }
    std::vector<Result<std::optional<SaveStats>>> results;
    for (auto& writer : writers) results.push_back(writer->Wait());
    return results;
  }
  std::vector<std::uint64_t> Steps() {
    std::vector<std::uint64_t> steps;
    auto entries = ListCheckpoints({store_, "runs/a"});
    EXPECT_TRUE(entries);
    for (const Entry& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  std::vector<std::string> Keys(std::string prefix = "") {
    std::vector<std::string> keys;
    auto page = object::List(*store_, {.prefix = prefix});
    EXPECT_TRUE(page);
    for (const auto& object : page->objects) keys.push_back(object.key);
    return keys;
  }
  std::unique_ptr<Reader> MustOpen(std::optional<std::uint64_t> step = std::nullopt) {
    auto reader = Reader::Open(connection_, kUrl, step);
    EXPECT_TRUE(reader) << (reader ? "" : reader.error().ToString());
    return *std::move(reader);
  }
  void ExpectGood(std::uint64_t step, const State& state) {
    auto reader = MustOpen(step);
    state.ExpectReadBack(*reader, 1);
    auto verified = reader->Verify();
    EXPECT_TRUE(verified) << (verified ? "" : verified.error().ToString());
  }

  FakeClock clock_;
  MemoryBudget budget_{64 * kMiB};
  std::shared_ptr<object::FaultStore> store_ =
      object::FaultStore::Create(object::MakeMemoryStore(StoreOptions(&clock_)), 1, clock_);
  StoreConnection connection_{store_};
};

TEST_F(CheckpointTest, WhatIsSavedComesBack) {
  State state = State::Random(1);
  auto writer = Open();
  ASSERT_TRUE(Save(*writer, 150, state, {{"loss", 2.5}}));
  EXPECT_THAT(Steps(), ElementsAre(150));
  auto reader = MustOpen();
  EXPECT_EQ(reader->name(), store_->Describe() + "/runs/a/step-00000150");
  EXPECT_EQ(reader->manifest().meta, Json({{"loss", 2.5}}));
  EXPECT_EQ(reader->manifest().step, 150u);
  state.ExpectReadBack(*reader, 1);
  auto verified = reader->Verify();
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->files, 1u);
  EXPECT_GT(verified->chunks, 1u);
}

TEST_F(CheckpointTest, AnyRanksSaveAndAnyRanksLoad) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    State state = State::Random(seed);
    const int ranks = 1 + static_cast<int>(seed % 3);
    for (auto& result : SaveOnRanks(seed, state.Share(ranks, seed))) {
      ASSERT_TRUE(result) << result.error().ToString();
      EXPECT_EQ((*result)->step, seed);
    }
    auto reader = MustOpen(seed);
    EXPECT_EQ(reader->manifest().ranks, ranks);
    for (int readers = 1; readers <= 3; ++readers) state.ExpectReadBack(*reader, readers);
    EXPECT_TRUE(reader->Verify(3));
  }
}

TEST_F(CheckpointTest, RandomSlicesReadRight) {
  State state = State::Random(5, 6, 40'000);
  SaveOnRanks(1, state.Share(3, 9));
  auto reader = MustOpen();
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<Reader::Wanted> wanted;
    std::vector<std::vector<std::byte>> into(4);
    std::vector<ByteSpan> expected;
    for (auto& bytes : into) {
      auto tensor = std::next(state.tensors.begin(), static_cast<long>(random.Below(state.tensors.size())));
      const std::uint64_t total = tensor->second.meta.elements(), element = DTypeBytes(tensor->second.meta.dtype);
      const std::uint64_t begin = random.Below(total + 1), take = random.Below(total - begin + 1);
      bytes.resize(take * element);
      expected.push_back(ByteSpan(tensor->second.bytes).subspan(begin * element, take * element));
      wanted.push_back({tensor->first, begin, bytes});
    }
    ASSERT_TRUE(reader->ReadMany(wanted, 1 + round % 4));
    for (std::size_t i = 0; i < into.size(); ++i) ASSERT_TRUE(std::ranges::equal(into[i], expected[i]));
  }
}

TEST_F(CheckpointTest, AnyBoxesLoadAsAnyBoxes) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    State state = State::Random(seed, 6, 600);
    for (auto& [name, tensor] : state.tensors) {
      if (tensor.meta.shape.empty()) continue;
      tensor.meta.shape = {3, static_cast<std::int64_t>(1 + random.Below(40)), 2, 5};
      tensor.bytes.resize(tensor.meta.bytes());
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.Next());
    }
    std::vector<std::vector<std::byte>> memory;
    const int ranks = 1 + static_cast<int>(seed % 4);
    for (auto& result : SaveOnRanks(seed, state.ShareBoxes(ranks, seed, memory)))
      ASSERT_TRUE(result) << result.error().ToString();
    auto reader = MustOpen(seed);
    state.ExpectReadBack(*reader, 2);
    for (const auto& [name, tensor] : state.tensors) {
      for (const Box& box : State::Grid(tensor.meta.shape, random)) {
        const auto expected = State::BoxBytes(tensor, box);
        const std::uint64_t element = DTypeBytes(tensor.meta.dtype);
        const std::uint64_t begin = random.Below(expected.size() / element + 1);
        std::vector<std::byte> into(expected.size() - begin * element);
        ASSERT_TRUE(reader->ReadMany({{name, begin, into, box}}, 2));
        ASSERT_TRUE(std::ranges::equal(into, ByteSpan(expected).subspan(begin * element))) << name << ToString(box);
      }
    }
  }
}

TEST_F(CheckpointTest, AShardIsReadWithoutItsNeighbours) {
  State state;
  state.tensors["model/w"] = {{DType::kF32, {64, 4096}}, std::vector<std::byte>(1 << 20)};
  std::vector<std::vector<SavePiece>> shares;
  std::vector<std::vector<std::byte>> columns(8);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    const Box box{{0, rank * 512}, {64, 512}};
    columns[rank] = State::BoxBytes(state.tensors["model/w"], box);
    shares.push_back({{"model/w", {DType::kF32, {64, 4096}}, 0, columns[rank], box}});
  }
  for (auto& result : SaveOnRanks(1, shares)) ASSERT_TRUE(result);
  auto reader = MustOpen(1);
  const auto before = store_->calls(object::Operation::kGet);
  std::vector<std::byte> half(1 << 19);
  ASSERT_TRUE(reader->ReadMany({{"model/w", 0, half, {{0, 2048}, {64, 2048}}}}, 4));
  EXPECT_EQ(store_->calls(object::Operation::kGet) - before, 4u) << "one request for each rank whose columns these are";
}

TEST_F(CheckpointTest, TheManifestSaysWhoWroteItAfterWhat) {
  State state = State::Random(1);
  Writer::Options options = Options();
  options.written_by = LocalProvenance("test", "1.2");
  options.parent = CheckpointId{3, "0123456789abcdef"};
  auto writer = Open(SingleProcessGroup(), options);
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

TEST_F(CheckpointTest, RefusesWrongRequests) {
  State state;
  state.tensors["model/x"] = {{DType::kF32, {4}}, std::vector<std::byte>(16)};
  ASSERT_TRUE(Save(*Open(), 1, state));
  auto reader = MustOpen();
  std::byte into[20];
  EXPECT_EQ(reader->Read("model/y", 0, MutableByteSpan(into, 4)).error().code(), Code::kNotFound);
  EXPECT_EQ(reader->Read("model/x", 0, MutableByteSpan(into, 20)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", 5, MutableByteSpan(into, 0)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", ~0ull, MutableByteSpan(into, 4)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", 0, MutableByteSpan(into, 3)).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(reader->Read("model/x", 4, MutableByteSpan(into, 0)));
  EXPECT_EQ(Reader::Open(connection_, kUrl, 2).error().code(), Code::kNotFound);
  EXPECT_EQ(Reader::Open(connection_, "s3://bucket/elsewhere").error().code(), Code::kNotFound);
}

TEST_F(CheckpointTest, TrainingMayGoOnAsSoonAsSaveReturns) {
  State state = State::Random(1), copy = state;
  auto gate = std::make_shared<GateGroup>(0);  // before a byte is uploaded
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  for (auto& [name, tensor] : state.tensors) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xee});
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  ExpectGood(1, copy);
}

TEST_F(CheckpointTest, TheCopyOfAStartedSaveIsThatOfItsStep) {
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

TEST_F(CheckpointTest, ASlowRateIsKept) {
  clock_.AdvanceOnSleep(true);
  State state = State::Random(1, 6, 40'000);
  Writer::Options options = Options();
  options.bandwidth = 10'000;
  auto writer = Open(SingleProcessGroup(), options);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  const auto stats = writer->Wait();
  ASSERT_TRUE(stats);
  const double seconds = std::chrono::duration<double>((*stats)->total).count();
  const auto bytes = static_cast<double>((*stats)->bytes);
  EXPECT_GE(seconds, (bytes - 8192) / 10'000) << "the last part may go out at the end";
  EXPECT_LE(seconds, bytes / 10'000 + 1);
  ExpectGood(1, state);
}

TEST_F(CheckpointTest, AnUploadThatTakesTooLongEndsTheSaveAndLeavesNothing) {
  clock_.AdvanceOnSleep(true);
  State state = State::Random(1, 6, 40'000);
  Writer::Options options = Options();
  options.bandwidth = 10'000;
  options.upload_limit = kSecond;
  auto writer = Open(SingleProcessGroup(), options);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  const auto saved = writer->Wait();
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), Code::kDeadlineExceeded) << saved.error().ToString();
  EXPECT_THAT(Keys(), IsEmpty());
  EXPECT_THAT(*object::ListUploads(*store_, ""), IsEmpty());
}

/// Remembers how much was reported.
class CountingGroup final : public Group {
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

TEST_F(CheckpointTest, WhatRankZeroKnowsIsNotSaidAgain) {
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

TEST_F(CheckpointTest, NothingIsVisibleBeforeTheManifest) {
  State state = State::Random(1);
  auto gate = std::make_shared<GateGroup>(1);
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(1, Whole(state), {}));
  gate->AwaitArrival();
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_EQ(Keys().size(), 1u) << "the rank's file is there already";
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  EXPECT_THAT(Steps(), ElementsAre(1));
}

TEST_F(CheckpointTest, WaitTellsOnceAndDestructionWaits) {
  State state = State::Random(1);
  std::vector<std::uint64_t> done;
  Writer::Options options = Options();
  options.on_done = [&](const Result<SaveStats>& stats) { done.push_back(stats ? stats->step : 0); };
  options.snapshot_bytes = 1 * kMiB;
  {
    auto writer = Open(SingleProcessGroup(), options);
    EXPECT_EQ(*writer->Wait(), std::nullopt);
    ASSERT_TRUE(writer->Save(1, Whole(state), {}));
    EXPECT_EQ((*writer->Wait())->step, 1u);
    EXPECT_EQ(*writer->Wait(), std::nullopt);
    ASSERT_TRUE(writer->Save(2, Whole(state), {}));
  }
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  EXPECT_THAT(done, ElementsAre(1, 2));
}

TEST_F(CheckpointTest, TheFirstSaveFindsItsMemoryReady) {
  State state = State::Random(1);
  Writer::Options options = Options();
  for (const SavePiece& piece : Whole(state)) options.snapshot_bytes += piece.bytes.size();
  auto writer = Open(SingleProcessGroup(), options);
  ASSERT_TRUE(writer->Wait());
  const std::uint64_t reserved = budget_.used();
  EXPECT_EQ(reserved, options.snapshot_bytes + 1 * kMiB);
  ASSERT_TRUE(Save(*writer, 1, state));
  EXPECT_EQ(budget_.used(), reserved);
  EXPECT_EQ(budget_.peak(), reserved) << "the snapshot is all that is taken";
}

TEST_F(CheckpointTest, AStepIsCommittedOnce) {
  State first = State::Random(1), second = State::Random(2);
  auto writer = Open();
  ASSERT_TRUE(Save(*writer, 7, first));
  auto again = Save(*writer, 7, second);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kAlreadyExists);
  EXPECT_THAT(again.error().ToString(), HasSubstr("step 7"));
  EXPECT_EQ(Keys().size(), 2u) << "one file and one manifest";
  ExpectGood(7, first);
  ASSERT_TRUE(Save(*writer, 8, second)) << "the writer goes on";
}

TEST_F(CheckpointTest, OneOfTwoWritersAtOneStepWins) {
  State first = State::Random(1), second = State::Random(2);
  auto gate = std::make_shared<GateGroup>(1);
  auto slow = Open(gate), fast = Open();
  ASSERT_TRUE(slow->Save(7, Whole(first), {}));
  gate->AwaitArrival();  // has seen that step 7 is free
  ASSERT_TRUE(Save(*fast, 7, second));
  gate->Open();
  auto lost = slow->Wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), Code::kAlreadyExists);
  EXPECT_EQ(Keys().size(), 2u) << "the loser has taken its file away";
  ExpectGood(7, second);
}

TEST_F(CheckpointTest, AFailureOfOneRankFailsAllAndLeavesTheOldCheckpoint) {
  State old = State::Random(1), state = State::Random(2);
  ASSERT_TRUE(Save(*Open(), 1, old));
  auto shares = state.Share(3, 2);
  auto too_many = shares, missing = shares, reshaped = shares;
  too_many[2].push_back(shares[0][0]);
  missing[1].pop_back();
  for (auto& piece : reshaped[2]) piece.meta.shape.push_back(1);
  auto bad_piece = shares;
  bad_piece[1][0].bytes = bad_piece[1][0].bytes.first(bad_piece[1][0].bytes.size() / 2 | 1);
  bad_piece[1][0].begin = ~0ull;
  for (auto* pieces : {&too_many, &missing, &reshaped, &bad_piece}) {
    for (auto& result : SaveOnRanks(2, *pieces)) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code(), Code::kInvalidArgument) << result.error().ToString();
    }
    EXPECT_THAT(Keys("runs/a/step-00000002"), IsEmpty());
  }
  EXPECT_THAT(Steps(), ElementsAre(1));
  ExpectGood(1, old);
}

TEST_F(CheckpointTest, AStoreThatFailsOneRankFailsAll) {
  State state = State::Random(2);
  store_->Add({.operation = object::Operation::kPut,
               .key_prefix = "runs/a/step-00000002/",
               .fault = {.code = Code::kPermissionDenied}});
  store_->Add({.operation = object::Operation::kCreateMultipart, .fault = {.code = Code::kPermissionDenied}});
  for (auto& result : SaveOnRanks(2, state.Share(2, 1))) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kPermissionDenied) << result.error().ToString();
    EXPECT_THAT(result.error().ToString(), HasSubstr("rank"));
  }
  EXPECT_THAT(Keys(), IsEmpty());
}

TEST_F(CheckpointTest, ADeadRankEndsTheSaveWithoutACommit) {
  State state = State::Random(2);
  ThreadRanks ranks(2);
  auto survivor = Open(ranks.Rank(0));
  ASSERT_TRUE(survivor->Save(1, Whole(state), {}));
  ranks.Break();
  auto result = survivor->Wait();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kUnavailable);
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(CheckpointTest, TheErrorOfASaveSurfacesOnceAndTheNextOneIsUnderWay) {
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

TEST_F(CheckpointTest, ACommitWhoseResponseIsLostIsACommit) {
  State state = State::Random(1);
  store_->Add({.operation = object::Operation::kPut,
               .key_prefix = "runs/a/step-00000001.json",
               .fault = {.code = Code::kDeadlineExceeded, .after_effect = true}});
  EXPECT_TRUE(Save(*Open(), 1, state));
  ExpectGood(1, state);
}

TEST_F(CheckpointTest, ACommitThatMayStillHappenKeepsItsFiles) {
  State state = State::Random(1);
  store_->Add({.operation = object::Operation::kPut,
               .key_prefix = "runs/a/step-00000001.json",
               .fault = {.code = Code::kDeadlineExceeded}});
  auto saved = Save(*Open(), 1, state);
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().ToString(), HasSubstr("unknown"));
  EXPECT_EQ(Keys().size(), 1u);
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(CheckpointTest, ASnapshotBeyondTheBudgetSaysSo) {
  State state;
  state.tensors["model/x"] = {{DType::kU8, {1 << 20}}, std::vector<std::byte>(1 << 20)};
  MemoryBudget small(512 * kKiB);
  auto writer = *Writer::Open(connection_, SingleProcessGroup(), small, Options());
  auto saved = Save(*writer, 1, state);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(saved.error().ToString(), HasSubstr("--memory-budget"));
}

TEST_F(CheckpointTest, EveryDamageIsFoundAndNamed) {
  State state = State::Random(4, 4, 2000);
  SaveOnRanks(3, state.Share(2, 4));
  Random random(11);
  for (const std::string& key : Keys("runs/a/step-00000003/")) {
    const std::string good = object::GetAll(*store_, key, 1 * kMiB)->value().bytes;
    for (int round = 0; round < 60; ++round) {
      std::string bad = good;
      const std::size_t at = round == 0 ? 0 : round == 1 ? bad.size() - 1 : random.Below(bad.size());
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.Below(8)));
      ASSERT_TRUE(object::Put(*store_, key, AsBytes(bad)));
      auto verified = MustOpen()->Verify();
      ASSERT_FALSE(verified);
      EXPECT_EQ(verified.error().code(), Code::kCorrupt);
      EXPECT_THAT(verified.error().ToString(), HasSubstr(key.substr(key.rfind("rank-"))));
      EXPECT_THAT(verified.error().ToString(), HasSubstr(fmt::format("bytes {} to", at / 4096 * 4096)));
    }
    for (std::size_t size : {std::size_t{0}, good.size() / 2, good.size() - 1, good.size() + 1}) {
      std::string bad = good;
      bad.resize(size);
      ASSERT_TRUE(object::Put(*store_, key, AsBytes(bad)));
      EXPECT_EQ(MustOpen()->Verify().error().code(), Code::kCorrupt) << size;
    }
    ASSERT_TRUE(object::Delete(*store_, key));
    EXPECT_EQ(MustOpen()->Verify().error().code(), Code::kNotFound);
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(good)));
  }
  EXPECT_TRUE(MustOpen()->Verify());
}

TEST_F(CheckpointTest, RetentionRemovesWhatItShouldAndOnlyThat) {
  State state = State::Random(1);
  Writer::Options options = Options();
  options.retention = {.keep_last = 2, .keep_every = 30};
  auto writer = Open(SingleProcessGroup(), options);
  ASSERT_TRUE(object::Put(*store_, "runs/a/step-00000010/notes.txt", AsBytes("mine")));
  ASSERT_TRUE(object::Put(*store_, "runs/ab/step-00000010.json", AsBytes(std::string(200, 'x'))));
  for (std::uint64_t step = 10; step <= 100; step += 10) ASSERT_TRUE(Save(*writer, step, state));
  EXPECT_THAT(Steps(), ElementsAre(30, 60, 90, 100));
  for (std::uint64_t step : Steps()) ExpectGood(step, state);
  EXPECT_THAT(Keys("runs/a/step-00000010/"), ElementsAre("runs/a/step-00000010/notes.txt"));
  EXPECT_EQ(Keys("runs/ab/").size(), 1u);
  EXPECT_EQ(Keys("runs/a/step-00000020"), std::vector<std::string>{"runs/a/step-00000020.json"}) << "a fence";
  EXPECT_EQ(Reader::Open(connection_, kUrl, 20).error().code(), Code::kNotFound);
  ASSERT_TRUE(Save(*writer, 120, state));
  ASSERT_TRUE(Save(*writer, 110, state)) << "older than the newest: saved all the same";
  EXPECT_THAT(Steps(), ElementsAre(30, 60, 90, 110, 120));
}

TEST_F(CheckpointTest, ARemovedStepCanBeSavedAgain) {
  State first = State::Random(1), second = State::Random(2);
  Writer::Options options = Options();
  options.retention = {.keep_last = 1};
  auto writer = Open(SingleProcessGroup(), options);
  ASSERT_TRUE(Save(*writer, 1, first));
  ASSERT_TRUE(Save(*writer, 2, first));
  EXPECT_THAT(Steps(), ElementsAre(2));
  auto keep = Open();
  ASSERT_TRUE(Save(*keep, 1, second));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  ExpectGood(1, second);
}

TEST_F(CheckpointTest, DryRunCountsAndChangesNothing) {
  State state = State::Random(1);
  auto writer = Open();
  for (std::uint64_t step : {1, 2, 3}) ASSERT_TRUE(Save(*writer, step, state));
  auto before = Keys();
  auto dry = CollectGarbage({store_, "runs/a/"}, {.keep_last = 1}, true);
  ASSERT_TRUE(dry);
  EXPECT_EQ(Keys(), before);
  auto wet = CollectGarbage({store_, "runs/a/"}, {.keep_last = 1}, false);
  ASSERT_TRUE(wet);
  EXPECT_THAT(wet->removed_steps, ElementsAre(1, 2));
  EXPECT_EQ(dry->removed_steps, wet->removed_steps);
  EXPECT_EQ(dry->bytes, wet->bytes);
  EXPECT_EQ(dry->objects, 2u);
  EXPECT_EQ(wet->objects, 2u);
}

TEST_F(CheckpointTest, OrphansGoOnceANewerCheckpointIsThere) {
  State state = State::Random(1);
  // A multipart upload that never ended and a file whose manifest was never put.
  std::string orphan = "runs/a/step-00000005/0123456789abcdef/rank-00000.safetensors";
  ASSERT_TRUE(object::Put(*store_, orphan, AsBytes("x")));
  ASSERT_TRUE(object::CreateMultipart(*store_, "runs/a/step-00000006/0123456789abcdef/rank-00001.safetensors"));
  auto collected = CollectGarbage({store_, "runs/a"}, {}, false);
  ASSERT_TRUE(collected);
  EXPECT_EQ(collected->objects, 0u) << "no checkpoint at all: they may be those of the first";
  ASSERT_TRUE(Save(*Open(), 4, state));
  EXPECT_THAT(Keys("runs/a/step-00000005/"), IsEmpty());
  EXPECT_THAT(*object::ListUploads(*store_, ""), IsEmpty());
  ExpectGood(4, state);
}

TEST_F(CheckpointTest, CollectionSparesALiveSave) {
  State old = State::Random(1), live = State::Random(2);
  ASSERT_TRUE(Save(*Open(), 1, old));
  clock_.Advance(kSecond);
  auto gate = std::make_shared<GateGroup>(1);
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(2, Whole(live), {}));
  gate->AwaitArrival();
  auto collected = CollectGarbage({store_, "runs/a"}, {}, false);
  ASSERT_TRUE(collected);
  EXPECT_EQ(collected->objects, 0u);
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  ExpectGood(2, live);
}

TEST_F(CheckpointTest, ASaveThatWasTakenForDeadCannotCommit) {
  State old = State::Random(1), late = State::Random(2);
  auto gate = std::make_shared<GateGroup>(1);
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(2, Whole(late), {}));
  gate->AwaitArrival();
  ASSERT_TRUE(Save(*Open(), 3, old));  // newer than the files of step 2: they are collected
  EXPECT_THAT(Keys("runs/a/step-00000002/"), IsEmpty());
  gate->Open();
  auto result = writer->Wait();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(result.error().ToString(), HasSubstr("garbage collection"));
  EXPECT_THAT(Steps(), ElementsAre(3));
  ASSERT_TRUE(Save(*Open(), 2, late)) << "the next try at the step succeeds";
  ExpectGood(2, late);
}

TEST_F(CheckpointTest, ASaveCannotCommitOverARemovedCheckpointOfItsStep) {
  State first = State::Random(1), late = State::Random(2);
  auto gate = std::make_shared<GateGroup>(1);
  auto writer = Open(gate);
  ASSERT_TRUE(writer->Save(2, Whole(late), {}));
  gate->AwaitArrival();
  ASSERT_TRUE(Save(*Open(), 2, first));
  ASSERT_TRUE(Save(*Open(), 3, first));
  ASSERT_TRUE(CollectGarbage({store_, "runs/a"}, {.keep_last = 1}, false));
  EXPECT_THAT(Steps(), ElementsAre(3));
  gate->Open();
  EXPECT_FALSE(writer->Wait());
  EXPECT_THAT(Steps(), ElementsAre(3));
}

TEST(ChunkSums, DoNotDependOnHowTheBytesCome) {
  Random random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> bytes(random.Below(5000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
    FileMeta expected{.size = bytes.size(), .chunk_bytes = 512};
    for (std::size_t at = 0; at < bytes.size(); at += 512)
      expected.chunk_crc32c.push_back(
          Crc32c(ByteSpan(bytes).subspan(at, std::min<std::size_t>(512, bytes.size() - at))));
    ChunkSums sums(512);
    for (ByteSpan left = bytes; !left.empty();) {
      ByteSpan piece = left.first(1 + random.Below(left.size()));
      sums.Add(piece);
      left = left.subspan(piece.size());
    }
    EXPECT_EQ(sums.Finish(), expected);
  }
}

TEST(Retained, HoldsItsRules) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    Retention retention{.keep_last = static_cast<int>(1 + random.Below(5)), .keep_every = random.Below(10)};
    auto kept = Retained(committed, retention);
    EXPECT_TRUE(std::includes(committed.begin(), committed.end(), kept.begin(), kept.end()));
    EXPECT_EQ(Retained(kept, retention), kept) << "applying it again changes nothing";
    std::size_t rank = 0;
    for (auto step = committed.rbegin(); step != committed.rend(); ++step, ++rank) {
      bool wanted = rank < static_cast<std::size_t>(retention.keep_last) ||
                    (retention.keep_every > 0 && *step % retention.keep_every == 0);
      EXPECT_EQ(kept.contains(*step), wanted) << *step;
    }
  }
}

TEST(Layout, ParsesTheKeysItMakesAndNoOthers) {
  for (std::string root : {"", "runs/a", "runs/a/"}) {
    Layout layout(root);
    for (std::uint64_t step : {std::uint64_t{0}, std::uint64_t{150}, std::uint64_t{123456789}, kMaxStep}) {
      EXPECT_EQ(layout.StepOfManifest(layout.ManifestKey(step)), step);
      std::string attempt = NewAttempt(), key = layout.StepFolder(step) + RankFile(attempt, 3);
      auto parsed = layout.ParseFileKey(key);
      ASSERT_TRUE(parsed) << key;
      EXPECT_EQ(parsed->step, step);
      EXPECT_EQ(parsed->attempt, attempt);
      EXPECT_FALSE(layout.StepOfManifest(key));
      EXPECT_FALSE(layout.ParseFileKey(layout.ManifestKey(step)));
    }
  }
  Layout layout("r");
  for (const char* key :
       {"r/step-150.json", "r/step-000000150.json", "r/step-00000150", "r/step-.json", "r/step--0000015.json",
        "step-00000150.json", "r/step-99999999999999999999.json", "r/step-00000150/x.json"}) {
    EXPECT_FALSE(layout.StepOfManifest(key)) << key;
  }
  EXPECT_FALSE(layout.ParseFileKey("r/step-00000150/notes/rank-00000.safetensors"));
  EXPECT_LT(NewFence().size(), kFenceLimit);
  EXPECT_NE(NewFence(), NewFence());
}

}  // namespace
}  // namespace millrace::checkpoint
