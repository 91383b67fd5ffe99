#include "millrace/jobs/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Json> Events(const std::vector<std::string>& names) {
  std::vector<Json> events;
  for (const std::string& name : names) events.push_back({{"event", name}});
  return events;
}

class RunFolderTest : public testing::Test {
 protected:
  RunFolderWriter Writer(const std::string& run = "r1") {
    return RunFolderWriter({store_, "run/"}, {.logs = logs_.path(), .run = run, .roll = 10, .most_events = 300});
  }
  void Append(const std::string& name, std::string_view text) const {
    std::ofstream(logs_.path() / name, std::ios::app) << text;
  }
  std::string Read(const std::string& key) const {
    const auto found = object::GetAll(*store_, key, kMiB);
    return found && *found ? (*found)->bytes : "<absent>";
  }
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    EXPECT_TRUE(object::ListAll(*store_, {}, [&](const object::ListPage& page) {
      for (const auto& object : page.objects) keys.push_back(object.key);
      return true;
    }));
    return keys;
  }
  std::vector<std::string> EventNames() const {
    std::vector<std::string> names;
    const std::string text = Read("run/events.jsonl");
    for (std::string_view line : Split(text, '\n')) {
      if (!line.empty()) names.push_back((*ParseJson(line, "event"))["event"]);
    }
    return names;
  }

  const TempDir logs_ = *TempDir::Create();
  const std::shared_ptr<object::FaultStore> store_ = object::FaultStore::Create(object::MakeMemoryStore());
};

TEST_F(RunFolderTest, ALogGrowsInObjectsThatTheirOffsetsName) {
  RunFolderWriter writer = Writer();
  Append("rank-0.out", "0123");
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_THAT(Keys(), ElementsAre("run/logs/r1/rank-0.out/0000000000000000"));
  Append("rank-0.out", "456789abcdefghijklmno");
  Append("rank-1.err", "x");
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_THAT(Keys(),
              ElementsAre("run/logs/r1/rank-0.out/0000000000000000", "run/logs/r1/rank-0.out/0000000000000010",
                          "run/logs/r1/rank-0.out/0000000000000020", "run/logs/r1/rank-1.err/0000000000000000"));
  EXPECT_EQ(Read("run/logs/r1/rank-0.out/0000000000000010"), "abcdefghij");
  EXPECT_EQ(Read("run/logs/r1/rank-0.out/0000000000000020"), "klmno");
}

TEST_F(RunFolderTest, PagesArePutAsAWholeWhenTheyChange) {
  const TempDir folder = *TempDir::Create();
  const auto write = [&](std::string_view text) { std::ofstream(folder.path() / "report.html") << text; };
  RunFolderWriter writer(
      {store_, "run/"},
      {.logs = logs_.path(), .pages = {folder.path() / "report.html", folder.path() / "history.json"}, .run = "r1"});
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_THAT(Keys(), ElementsAre());  // there are none yet
  write("<p>1</p>");
  store_->Add({.operation = object::Operation::kPut, .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(writer.Write({}, std::nullopt, {}));
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_EQ(Read("run/report.html"), "<p>1</p>");
  write("<p>2</p>");
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_EQ(Read("run/report.html"), "<p>2</p>");
  const auto before = store_->calls(object::Operation::kPut);
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_EQ(store_->calls(object::Operation::kPut), before);
  EXPECT_THAT(Keys(), ElementsAre("run/report.html"));
}

TEST_F(RunFolderTest, WritesOnlyWhatChanged) {
  RunFolderWriter writer = Writer();
  Append("rank-0.out", "0123456789abc");
  ASSERT_TRUE(writer.Write(Events({"start"}), std::nullopt, {}));
  const auto before = store_->calls(object::Operation::kPut);
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_EQ(store_->calls(object::Operation::kPut), before);
  Append("rank-0.out", "d");
  ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
  EXPECT_EQ(store_->calls(object::Operation::kPut), before + 1);
}

/// Whatever grows when, and whichever writes fail: a reader gets each byte once, in order.
TEST_F(RunFolderTest, AReaderThatFollowsGetsTheWholeLog) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const std::string run = fmt::format("r{}", seed), name = fmt::format("rank-{}.out", seed);
    RunFolderWriter writer = Writer(run);
    RunLogReader reader({store_, "run/"}, run, name);
    std::string written, read;
    const auto take = [&](std::string_view text) { read += text; };
    for (int round = 0; round < 30; ++round) {
      std::string more(random.Below(25), '\0');
      for (char& c : more) c = static_cast<char>('a' + random.Below(26));
      Append(name, more);
      written += more;
      if (random.Below(3) == 0)
        store_->Add({.operation = object::Operation::kPut, .fault = {.code = Code::kUnavailable}});
      const Status wrote = writer.Write({}, std::nullopt, {});
      if (random.Below(2) == 0) ASSERT_TRUE(reader.Poll(take, {}));
      EXPECT_TRUE(written.starts_with(read));
      store_->Clear();
    }
    ASSERT_TRUE(writer.Write({}, std::nullopt, {}));
    EXPECT_EQ(*reader.Poll(take, {}), !written.empty());
    EXPECT_EQ(read, written);
  }
}

TEST_F(RunFolderTest, ThereMayBeNoSuchLog) {
  EXPECT_FALSE(*RunLogReader({store_, "run/"}, "r1", "rank-7.out").Poll([](std::string_view) {}, {}));
}

TEST_F(RunFolderTest, EventsOfEarlierRunsStay) {
  ASSERT_TRUE(Writer("r1").Write(Events({"start", "done"}), std::nullopt, {}));
  RunFolderWriter second = Writer("r2");
  ASSERT_TRUE(second.Write(Events({"start"}), std::nullopt, {}));
  ASSERT_TRUE(second.Write(Events({"failed"}), std::nullopt, {}));
  EXPECT_THAT(EventNames(), ElementsAre("start", "done", "start", "failed"));
  EXPECT_THAT(Read("run/events.jsonl"), testing::EndsWith("{\"event\":\"failed\",\"run\":\"r2\"}\n"));
}

TEST_F(RunFolderTest, TheOldestEventsAreDropped) {
  RunFolderWriter writer = Writer();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(writer.Write(Events({fmt::format("number {}", i)}), std::nullopt, {}));
    EXPECT_LE(Read("run/events.jsonl").size(), 300u);
  }
  const auto names = EventNames();
  EXPECT_GE(names.size(), 5u);
  EXPECT_EQ(names.back(), "number 39");
}

TEST_F(RunFolderTest, EventsWaitForABucketThatIsAway) {
  RunFolderWriter writer = Writer();
  store_->Add({.times = -1, .fault = {.code = Code::kUnavailable}});
  for (const char* event : {"start", "failure"}) EXPECT_FALSE(writer.Write(Events({event}), Json::object(), {}));
  store_->Clear();
  EXPECT_THAT(Keys(), ElementsAre());
  ASSERT_TRUE(writer.Write(Events({"restart"}), Json{{"name", "job"}}, {}));
  EXPECT_THAT(EventNames(), ElementsAre("start", "failure", "restart"));
  const auto status = ReadRunStatus({store_, "run/"}, {});
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(*status, (Json{{"name", "job"}, {"run", "r1"}}));
}

/// So a reader that sees the end finds the whole log.
TEST_F(RunFolderTest, TheStatusComesAfterTheLogs) {
  RunFolderWriter writer = Writer();
  Append("rank-0.out", "last words\n");
  store_->Add({.operation = object::Operation::kPut, .key_prefix = "run/logs/", .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(writer.Write({}, Json{{"state", "done"}}, {}));
  EXPECT_THAT(Keys(), ElementsAre());
}

TEST_F(RunFolderTest, AFolderWithoutAStatusIsNoRun) {
  const auto status = ReadRunStatus({store_, "run/"}, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kNotFound);
  EXPECT_THAT(status.error().ToString(), HasSubstr("run/status.json"));
  ASSERT_TRUE(object::Put(*store_, "run/status.json", AsBytes("{")));
  EXPECT_EQ(ReadRunStatus({store_, "run/"}, {}).error().code(), Code::kCorrupt);
}

TEST(EventOfLine, FindsCheckpointsAndEvaluations) {
  EXPECT_EQ(EventOfLine("checkpoint of step 50 committed: 1.2 MB in 0.1 s, held up 0.2 ms"),
            (Json{{"event", "checkpoint"}, {"step", 50}}));
  EXPECT_EQ((*EventOfLine(R"({"event": "checkpoint", "step": 5, "tier": "local"})"))["tier"], "local");
  EXPECT_EQ((*EventOfLine(R"({"event": "eval", "step": 5, "loss": 2.5})"))["loss"], 2.5);
  for (const char* line : {"step 5 loss 2.5", R"({"step": 5, "loss": 2.5})", R"({"event": "plan"})", R"({"event": 7})",
                           R"({"event": "eval")", "checkpoint of step x", ""}) {
    EXPECT_FALSE(EventOfLine(line)) << line;
  }
}

TEST(NewRunName, SortsByTimeAndDoesNotRepeat) {
  Random random(1);
  const WallTime now = WallTime(std::chrono::seconds(1'700'000'000));
  const std::string name = NewRunName(now, random);
  EXPECT_THAT(name, testing::MatchesRegex("20231114T221320Z-[0-9a-f]{8}"));
  EXPECT_NE(NewRunName(now, random), name);
  EXPECT_LT(name, NewRunName(now + std::chrono::seconds(1), random));
}

}  // namespace
}  // namespace millrace::jobs
