// A checkpoint is there whole or not at all, whoever fails, and a step is committed once.
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/chunk_sums.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

#include <gmock/gmock.h>

#include <thread>

#include "millrace/base/hash/crc.h"
#include "millrace/base/threads/sync.h"

namespace millrace::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::GateGroup;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSecond;
using testing::State;
using testing::ThreadRanks;

class CommitTest : public testing::CheckpointTest {};

TEST_F(CommitTest, NothingIsVisibleBeforeTheManifest) {
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

TEST_F(CommitTest, AStepIsCommittedOnce) {
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

TEST_F(CommitTest, OneOfTwoWritersAtOneStepWins) {
  State first = State::Random(1), second = State::Random(2);
  auto gate = std::make_shared<GateGroup>(1);
  auto slow = Open(gate), fast = Open();
  ASSERT_TRUE(slow->Save(7, Whole(first), {}));
  gate->AwaitArrival();  // has seen that step 7 is free
  ASSERT_TRUE(Save(*fast, 7, second));
  gate->Open();
  auto lost = slow->Wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), Code::kPreconditionFailed);
  EXPECT_TRUE(slow->lost());
  EXPECT_EQ(Keys().size(), 2u) << "the loser has taken its file away";
  ExpectGood(7, second);
}

TEST_F(CommitTest, AFailureOfOneRankFailsAllAndLeavesTheOldCheckpoint) {
  State old = State::Random(1), state = State::Random(2);
  ASSERT_TRUE(Save(*Open(), 1, old));
  auto shares = state.Share(3, 2);
  auto too_many = shares, missing = shares, reshaped = shares;
  too_many[2].push_back(shares[0][0]);
  missing[1].pop_back();
  for (auto& slice : reshaped[2]) slice.meta.shape.push_back(1);
  auto bad_slice = shares;
  bad_slice[1][0].bytes = bad_slice[1][0].bytes.first(bad_slice[1][0].bytes.size() / 2 | 1);
  bad_slice[1][0].begin = ~0ull;
  for (auto* slices : {&too_many, &missing, &reshaped, &bad_slice}) {
    for (auto& result : SaveOnRanks(2, *slices)) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code(), Code::kInvalidArgument) << result.error().ToString();
    }
    EXPECT_THAT(Keys("runs/a/step-00000002"), IsEmpty());
  }
  EXPECT_THAT(Steps(), ElementsAre(1));
  ExpectGood(1, old);
}

TEST_F(CommitTest, AStoreThatFailsOneRankFailsAll) {
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

TEST_F(CommitTest, ADeadRankEndsTheSaveWithoutACommit) {
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

TEST_F(CommitTest, ACommitWhoseResponseIsLostIsACommit) {
  State state = State::Random(1);
  store_->Add({.operation = object::Operation::kPut,
               .key_prefix = "runs/a/step-00000001.json",
               .fault = {.code = Code::kDeadlineExceeded, .after_effect = true}});
  EXPECT_TRUE(Save(*Open(), 1, state));
  ExpectGood(1, state);
}

TEST_F(CommitTest, ACommitThatMayStillHappenKeepsItsFiles) {
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

TEST_F(CommitTest, WhoeverFindsAStepTakenIsToldByWhom) {
  const State state = State::Random(1);
  Writer::Options options = Options();
  options.written_by = {.host = "node-7", .user = "ann", .program = "millrace-train"};
  ASSERT_TRUE(Save(*Open(SingleRankExchange(), options), 7, state));
  EXPECT_THAT(Save(*Open(), 7, state).error().ToString(), HasSubstr("already, by ann@node-7 (millrace-train, 20"));
  auto gate = std::make_shared<GateGroup>(1);
  auto slow = Open(gate);
  ASSERT_TRUE(slow->Save(8, Whole(state), {}));
  gate->AwaitArrival();
  ASSERT_TRUE(Save(*Open(SingleRankExchange(), options), 8, state));
  gate->Open();
  EXPECT_THAT(slow->Wait().error().ToString(), HasSubstr("by ann@node-7"));
}

class Lines final : public LogSink {
 public:
  void Write(std::string_view line) override {
    MutexLock lock(mutex_);
    lines_.emplace_back(line);
  }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ MR_GUARDED_BY(mutex_);
};

/// Two runs that save to one place.
class OtherRunTest : public CommitTest {
 protected:
  std::unique_ptr<Writer> OpenRun(const std::string& id, int attempt = 1, std::optional<std::uint64_t> resumed = {},
                                  std::shared_ptr<RankExchange> group = SingleRankExchange()) {
    Writer::Options options = Options();
    options.retention = {.keep_last = 1};
    options.log = Logger(lines_, LogLevel::kWarning);
    options.run = RunLineage{.id = id, .attempt = attempt};
    if (resumed) {
      const auto reader = MustOpen(*resumed);
      options.parent = reader->manifest().id();
      if (reader->manifest().run.id != id) options.run->after = {reader->manifest().run.id};
    }
    return Open(std::move(group), options);
  }
  const State state_ = State::Random(1);
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
};

TEST_F(OtherRunTest, TheRunThatIsBehindSavesNoMore) {
  auto behind = OpenRun("a"), ahead = OpenRun("b");
  ASSERT_TRUE(Save(*behind, 10, state_));
  EXPECT_FALSE(behind->lost());
  auto late = Save(*ahead, 5, state_);  // began, too, without a checkpoint
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(late.error().ToString(), AllOf(HasSubstr("another run saves to memory"), HasSubstr("/runs/a: "),
                                             HasSubstr("has committed step 10"), HasSubstr("checkpoint.url")));
  ASSERT_TRUE(ahead->lost());
  ahead = OpenRun("b", 1, 10);
  ASSERT_TRUE(Save(*ahead, 20, state_));
  const auto keys = Keys();
  for (const std::uint64_t step : {15, 20, 25, 30}) EXPECT_FALSE(Save(*behind, step, state_)) << step;
  EXPECT_TRUE(behind->lost());
  EXPECT_EQ(Keys(), keys) << "nothing was written";
  EXPECT_TRUE(Save(*ahead, 30, state_));
}

TEST_F(OtherRunTest, RetentionLeavesItsCheckpoints) {
  auto gate = std::make_shared<GateGroup>(0);
  auto behind = OpenRun("b", 1, {}, gate), ahead = OpenRun("a");
  ASSERT_TRUE(behind->Save(5, Whole(state_), {}));
  gate->AwaitArrival();  // has seen no other run, and written nothing yet
  ASSERT_TRUE(Save(*ahead, 10, state_));
  gate->Open();
  ASSERT_TRUE(behind->Wait());
  EXPECT_THAT(Steps(), ElementsAre(5, 10));
  ASSERT_TRUE(Save(*ahead, 20, state_));
  ASSERT_TRUE(Save(*ahead, 30, state_));
  EXPECT_THAT(Steps(), ElementsAre(5, 30)) << "each keeps its last";
  EXPECT_THAT(lines_->lines(),
              ElementsAre(AllOf(HasSubstr("another run has saved to the same place"), HasSubstr("its_step=5"))));
  auto next = OpenRun("c", 1, 30);
  ASSERT_TRUE(Save(*next, 40, state_));
  EXPECT_THAT(Steps(), ElementsAre(5, 40)) << "a run's past is its own";
}

TEST_F(OtherRunTest, ALateCommitOfAnEarlierAttemptIsOurs) {
  auto first = OpenRun("a");
  ASSERT_TRUE(Save(*first, 10, state_));
  auto second = OpenRun("a", 2, 10);
  ASSERT_TRUE(Save(*first, 15, state_)) << "its answer came late";
  ASSERT_TRUE(Save(*second, 20, state_));
  EXPECT_THAT(Steps(), ElementsAre(20));
  EXPECT_THAT(lines_->lines(), IsEmpty());
  const auto over = Save(*first, 30, state_);
  ASSERT_FALSE(over) << "an attempt that nobody ended";
  EXPECT_THAT(over.error().ToString(), HasSubstr("a later attempt of this run"));
  EXPECT_TRUE(first->lost());
}

TEST_F(OtherRunTest, ACommitWhoseAnswerIsLostIsOurs) {
  auto writer = OpenRun("a");
  store_->Add({.operation = object::Operation::kPut,
               .key_prefix = "runs/a/step-00000001.json",
               .fault = {.code = Code::kDeadlineExceeded, .after_effect = true}});
  store_->Add({.operation = object::Operation::kGet,
               .key_prefix = "runs/a/step-00000001.json",
               .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(Save(*writer, 1, state_)) << "nobody knows";
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_TRUE(Save(*writer, 2, state_));
  EXPECT_FALSE(writer->lost());
}

TEST_F(OtherRunTest, AllRanksLearnOfIt) {
  ASSERT_TRUE(Save(*OpenRun("b"), 10, state_));
  ThreadRanks ranks(2);
  auto zero = OpenRun("a", 1, {}, ranks.Rank(0)), one = OpenRun("a", 1, {}, ranks.Rank(1));
  const auto shares = state_.Share(2, 1);
  ASSERT_TRUE(zero->Save(5, shares[0], {}));
  ASSERT_TRUE(one->Save(5, shares[1], {}));
  for (Writer* writer : {zero.get(), one.get()}) {
    EXPECT_FALSE(writer->Wait());
    EXPECT_TRUE(writer->lost());
  }
}

TEST_F(OtherRunTest, AWriterThatKnowsNoPastTakesWhatIsThere) {
  auto before = OpenRun("a");
  for (const std::uint64_t step : {10, 20}) ASSERT_TRUE(Save(*before, step, state_));
  Writer::Options options = Options();
  options.retention = {.keep_last = 1};
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(Save(*writer, 15, state_)) << "it went back";
  EXPECT_THAT(Steps(), ElementsAre(20));
  ASSERT_TRUE(Save(*writer, 30, state_));
  EXPECT_THAT(Steps(), ElementsAre(30));
  EXPECT_FALSE(Save(*before, 40, state_)) << "the other goes on without it";
}

TEST_F(CommitTest, TwoRunsAtOnePlaceHarmNoCheckpoint) {
  constexpr int kRuns = 2;
  const State states[kRuns] = {State::Random(1, 4, 2000), State::Random(2, 4, 2000)};
  std::vector<std::thread> runs;
  for (int run = 0; run < kRuns; ++run) {
    runs.emplace_back([&, run] {
      Writer::Options options = Options();
      options.retention = {.keep_last = 3};
      auto writer = Open(SingleRankExchange(), options);
      Random random(static_cast<std::uint64_t>(run));
      for (std::uint64_t step = 1; step <= 60; step += 1 + random.Below(2)) {
        clock_.Advance(kSecond);
        ASSERT_TRUE(writer->Save(step, Whole(states[run]), fmt::format(R"({{"run": {}}})", run)));
        if (const auto saved = writer->Wait(); !saved) {
          // Taken by the other one, or taken for a leftover by it: given up, or its upload ended.
          EXPECT_THAT(saved.error().code(), AnyOf(Code::kAlreadyExists, Code::kPreconditionFailed, Code::kNotFound))
              << saved.error().ToString();
        }
      }
    });
  }
  for (std::thread& run : runs) run.join();
  EXPECT_FALSE(Steps().empty());
  for (const std::uint64_t step : Steps())
    ExpectGood(step, states[MustOpen(step)->manifest().meta.at("run").get<int>()]);
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
      ByteSpan run = left.first(1 + random.Below(left.size()));
      EXPECT_EQ(sums.Add(run), Crc32c(run));
      left = left.subspan(run.size());
    }
    EXPECT_EQ(sums.Finish(), expected);
  }
}

}  // namespace
}  // namespace millrace::checkpoint
