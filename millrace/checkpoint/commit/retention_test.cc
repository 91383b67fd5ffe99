// What a writer removes after its commits, and what becomes of saves that were cut off or overtaken.
#include <gmock/gmock.h>

#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::GateGroup;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSecond;
using testing::kUrl;
using testing::State;

class RetentionTest : public testing::CheckpointTest {};

TEST_F(RetentionTest, RetentionRemovesWhatItShouldAndOnlyThat) {
  State state = State::Random(1);
  Writer::Options options = Options();
  options.retention = {.keep_last = 2, .keep_every = 30};
  auto writer = Open(SingleRankExchange(), options);
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

TEST_F(RetentionTest, ARemovedStepCanBeSavedAgain) {
  State first = State::Random(1), second = State::Random(2);
  Writer::Options options = Options();
  options.retention = {.keep_last = 1};
  auto writer = Open(SingleRankExchange(), options);
  ASSERT_TRUE(Save(*writer, 1, first));
  ASSERT_TRUE(Save(*writer, 2, first));
  EXPECT_THAT(Steps(), ElementsAre(2));
  auto keep = Open();
  ASSERT_TRUE(Save(*keep, 1, second));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  ExpectGood(1, second);
}

TEST_F(RetentionTest, DryRunCountsAndChangesNothing) {
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

TEST_F(RetentionTest, OrphansGoOnceANewerCheckpointIsThere) {
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

TEST_F(RetentionTest, CollectionSparesALiveSave) {
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

TEST_F(RetentionTest, ASaveThatWasTakenForDeadCannotCommit) {
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

TEST_F(RetentionTest, ASaveCannotCommitOverARemovedCheckpointOfItsStep) {
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

}  // namespace
}  // namespace millrace::checkpoint
