#include "millrace/history/run_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace::history {
namespace {

using ::testing::HasSubstr;

ChartPoint Step(std::uint64_t step, double loss = 2) {
  ChartPoint point{.first_step = step, .last_step = step, .loss = loss, .losses = 1, .lr = 1e-3, .tokens = 100};
  point.flops = 1e6;
  point.times = {.step = 0.5, .data_wait = 0.125, .comm_wait = 0.25, .data_wait_on = {{"network", 0.125}}};
  return point;
}

RunHistory Started() {
  RunHistory history;
  history.Start({.name = "demo", .ranks = 2, .steps = 10'000, .flops_rate = 4e6}, 1000, 0);
  return history;
}

TEST(RunHistoryTest, StaysSmallAndKeepsTheSums) {
  RunHistory history = Started();
  constexpr std::uint64_t kSteps = 5000;
  for (std::uint64_t step = 1; step <= kSteps; ++step) history.AddStep(Step(step, static_cast<double>(step)), 1000);
  EXPECT_LE(history.points().size(), RunHistory::kMaxPoints);
  EXPECT_GT(history.points().size(), RunHistory::kMaxPoints / 4);
  std::uint64_t expected = 1, tokens = 0;
  double losses = 0;
  for (const ChartPoint& point : history.points()) {
    EXPECT_EQ(point.first_step, expected);
    EXPECT_EQ(point.losses, point.steps());
    expected = point.last_step + 1;
    tokens += point.tokens;
    losses += point.loss * static_cast<double>(point.losses);
  }
  EXPECT_EQ(expected, kSteps + 1);
  EXPECT_EQ(tokens, 100 * kSteps);
  EXPECT_NEAR(losses, kSteps * (kSteps + 1) / 2.0, 1e-3);
  EXPECT_EQ(history.latest()->last_step, kSteps);
}

TEST(RunHistoryTest, ARestartMakesTheStepsSinceTheCheckpointAgain) {
  RunHistory history = Started();
  for (std::uint64_t step = 1; step <= 30; ++step) history.AddStep(Step(step), 1000);
  history.AddCheckpoint({.step = 20, .tier = "store"});
  history.AddCheckpoint({.step = 30, .tier = "local"});
  history.Start({.name = "demo"}, 2000, 20);
  EXPECT_EQ(history.points().back().last_step, 20u);
  EXPECT_EQ(history.checkpoints().size(), 1u);
  EXPECT_EQ(history.starts().size(), 2u);
  EXPECT_FALSE(history.latest());
  history.AddStep(Step(21), 2001);
  EXPECT_EQ(history.points().back().first_step, 21u);
}

TEST(RunHistoryTest, ARunFromTheBeginningForgetsTheOneBefore) {
  RunHistory history = Started();
  history.AddStep(Step(1), 1000);
  history.Start({.name = "demo"}, 2000, 0);
  EXPECT_TRUE(history.points().empty());
  EXPECT_EQ(history.starts().size(), 1u);
}

TEST(RunHistoryTest, StepsThatAreMadeAgainReplaceThoseBefore) {
  RunHistory history = Started();
  for (std::uint64_t step = 1; step <= 10; ++step) history.AddStep(Step(step), 1000);
  history.AddStep(Step(6, 9), 1001);
  ASSERT_EQ(history.points().size(), 6u);
  EXPECT_EQ(history.points().back().loss, 9);
}

TEST(RunHistoryTest, RoundTripsThroughJson) {
  RunHistory history = Started();
  for (std::uint64_t step = 1; step <= 700; ++step) history.AddStep(Step(step), 1000.5);
  history.AddStep(Step(701, std::numeric_limits<double>::quiet_NaN()), 1001);
  history.AddCheckpoint({.step = 3, .tier = "store", .bytes = 5, .seconds = 0.25, .time = 7, .error = "disk \"full\""});
  history.AddEvaluation({.step = 4, .metrics = {{"loss", 1.5}}});
  history.SetRanks({{.times = {.step = 1},
                     .memory_bytes = 9,
                     .gpu_memory_bytes = 11,
                     .gpu = {.utilization = 0.97, .celsius = 61, .watts = {}},
                     .busy_cores = 1.5,
                     .stage = 1,
                     .slowness = 2}});
  const auto read = RunHistory::Parse(DumpJson(history.ToJson()), "history");
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(*read, history);
}

TEST(RunHistoryTest, RefusesWhatIsNoHistory) {
  for (const char* text : {"", "[]", "{}", R"({"version":2})", R"({"version":1,"facts":{}})"}) {
    const auto read = RunHistory::Parse(text, "the file");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), Code::kCorrupt);
    EXPECT_THAT(read.error().ToString(), HasSubstr("the file"));
  }
  Json json = Started().ToJson();
  for (std::size_t i = 0; i <= RunHistory::kMaxNotes; ++i) json["starts"].push_back({{"time", 1}, {"resumed_from", 0}});
  EXPECT_FALSE(RunHistory::Parse(DumpJson(json), "the file"));
}

TEST(RunHistoryTest, UtilizationIsAShareOfTheMachinesRate) {
  const RunHistory history = Started();
  EXPECT_DOUBLE_EQ(history.Utilization(Step(1)).value(), 0.5);  // 1e6 FLOP in 0.5 s of 4e6 FLOP/s
  EXPECT_FALSE(RunHistory().Utilization(Step(1)));
}

}  // namespace
}  // namespace millrace::history
