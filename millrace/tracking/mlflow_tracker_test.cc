#include "millrace/tracking/mlflow_tracker.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <semaphore>

#include "millrace/tracking/testing/collected_log.h"
#include "millrace/tracking/testing/fake_mlflow.h"

namespace millrace::tracking {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
using Metric = FakeMlflow::Metric;

class MlflowTrackerTest : public ::testing::Test {
 protected:
  MlflowTrackerTest() { clock_.AdvanceOnSleep(true); }
  Result<std::unique_ptr<MlflowTracker>> Open(const FakeMlflow& server,
                                              TrackedRun run = {.id = "abc", .name = "demo"}) {
    MlflowOptions options = options_;
    options.url = server.url();
    const Environment environment = [this](const char* name) -> std::optional<std::string> {
      const auto found = env_.find(name);
      return found == env_.end() ? std::nullopt : std::optional(found->second);
    };
    return MlflowTracker::Open(options, {}, run, environment, clock_, log_.logger());
  }

  MlflowOptions options_;
  std::map<std::string, std::string> env_;
  FakeClock clock_;
  CollectedLog log_;
};

TEST_F(MlflowTrackerTest, LogsAWholeRun) {
  FakeMlflow server;
  options_ = {.experiment = "llama & co", .run_name = "first", .tags = {{"team", "nlp"}}};
  auto tracker = Open(server, {.id = "abc",
                               .name = "demo",
                               .parameters = {{"train.optimizer.lr", 0.001}, {"data.sources[0].url", "s3://a/*"}}})
                     .value();
  tracker->AddMetrics(1, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  tracker->AddMetrics(2, {{"train/loss", std::nan("")},
                          {"up", std::numeric_limits<double>::infinity()},
                          {"down", -std::numeric_limits<double>::infinity()}});
  tracker->AddCheckpoint({.step = 2, .tier = "store", .url = "s3://runs/a", .bytes = 10, .seconds = 0.5});
  tracker->AddCheckpoint({.step = 3, .tier = "store", .error = "no space"});
  tracker->End(RunEnding::kFinished, "");
  EXPECT_THAT(server.experiments(), ElementsAre(Pair("llama & co", "1")));
  ASSERT_EQ(server.runs().size(), 1u);
  const FakeMlflow::Run run = server.runs().at(tracker->run_id());
  EXPECT_EQ(run.name, "first");
  EXPECT_EQ(run.status, "FINISHED");
  EXPECT_TRUE(run.has_end);
  EXPECT_THAT(run.params, ElementsAre(Pair("data.sources.0.url", "s3://a/*"), Pair("train.optimizer.lr", "0.001")));
  EXPECT_THAT(run.tags, IsSupersetOf({Pair("team", "nlp"), Pair("millrace.run", "abc"), Pair("millrace.attempt", "1"),
                                      Pair("checkpoint.step", "2"), Pair("checkpoint.url", "s3://runs/a"),
                                      Pair("checkpoint.error", "no space")}));
  EXPECT_THAT(run.metrics,
              ElementsAre(Metric{"train/loss", 2.5, 1}, Metric{"train/lr", 0.001, 1}, Metric{"down", "-Infinity", 2},
                          Metric{"train/loss", "NaN", 2}, Metric{"up", "Infinity", 2},
                          Metric{"checkpoint/bytes", 10.0, 2}, Metric{"checkpoint/seconds", 0.5, 2}));
  EXPECT_EQ(log_.Count("misses"), 0) << log_.text();
}

TEST_F(MlflowTrackerTest, AnotherAttemptGoesOnWithTheRun) {
  FakeMlflow server;
  TrackedRun run{.id = "abc", .name = "demo", .parameters = {{"train.steps", 10.0}, {"train.seed", 1.0}}};
  const std::string first = [&] {
    auto tracker = Open(server, run).value();
    tracker->AddMetrics(1, {{"loss", 3}});
    return tracker->run_id();
  }();  // it was not told how the run ended
  EXPECT_EQ(server.runs().at(first).status, "FAILED");
  run.attempt = 2;
  run.resumed_from = 1;
  run.parameters = {{"train.steps", 20.0}, {"train.seed", 1.0}, {"train.clip", 1.5}};
  auto tracker = Open(server, run).value();
  EXPECT_EQ(tracker->run_id(), first);
  EXPECT_EQ(server.runs().at(first).status, "RUNNING");
  tracker->AddMetrics(2, {{"loss", 2}});
  tracker->End(RunEnding::kStopped, "");
  ASSERT_EQ(server.runs().size(), 1u);
  const FakeMlflow::Run ended = server.runs().at(first);
  EXPECT_EQ(ended.status, "KILLED");
  EXPECT_THAT(ended.metrics, ElementsAre(Metric{"loss", 3.0, 1}, Metric{"loss", 2.0, 2}));
  EXPECT_THAT(ended.params, ElementsAre(Pair("train.clip", "1.5"), Pair("train.seed", "1"), Pair("train.steps", "10")));
  EXPECT_THAT(ended.tags, IsSupersetOf({Pair("changed.train.steps", "20"), Pair("millrace.attempt", "2"),
                                        Pair("millrace.resumed_from", "1")}));
}

TEST_F(MlflowTrackerTest, OtherRunsAreRunsOfTheirOwn) {
  FakeMlflow server;
  const std::string first = Open(server).value()->run_id();
  EXPECT_NE(Open(server, {.id = "abd", .name = "demo"}).value()->run_id(), first);
  env_["MLFLOW_RUN_ID"] = first;
  EXPECT_EQ(Open(server, {.id = "abe", .name = "demo"}).value()->run_id(), first);
  env_ = {{"MLFLOW_EXPERIMENT_NAME", "named"}};
  Open(server).value();
  EXPECT_THAT(server.experiments(), ElementsAre(Pair("demo", "1"), Pair("named", "2")));
}

TEST_F(MlflowTrackerTest, KeepsTheLimitsOfARequest) {
  FakeMlflow server;
  Parameters parameters;
  for (int i = 0; i < 250; ++i) parameters[fmt::format("p{}", i)] = double(i);
  auto tracker = Open(server, {.id = "abc", .name = "demo", .parameters = parameters}).value();
  EXPECT_EQ(server.runs().at(tracker->run_id()).params.size(), 250u);
  Metrics many;
  for (int i = 0; i < 2500; ++i) many[fmt::format("m{}", i)] = i;
  tracker->AddMetrics(1, many);
  for (int step = 2; step < 500; ++step) tracker->AddMetrics(step, {{"a", 1}, {"b", 2}, {"c", 3}});
  tracker->End(RunEnding::kFinished, "");
  EXPECT_EQ(server.runs().at(tracker->run_id()).metrics.size(), 2500u + 3 * 498);
  EXPECT_EQ(log_.Count("misses"), 0) << log_.text();
}

TEST_F(MlflowTrackerTest, CutsValuesForAnOldServer) {
  FakeMlflow server;
  server.SetValueLimit(500);
  const auto tracker =
      Open(server, {.id = "abc", .name = "demo", .parameters = {{"long", std::string(7000, 'x')}, {"short", "y"}}})
          .value();
  EXPECT_EQ(server.runs().at(tracker->run_id()).params.at("long").size(), 500u);
  // The next attempt knows that the value was cut.
  const auto again =
      Open(server, {.id = "abc", .name = "demo", .parameters = {{"long", std::string(7000, 'x')}, {"short", "y"}}})
          .value();
  EXPECT_FALSE(server.runs().at(again->run_id()).tags.contains("changed.long"));
}

TEST_F(MlflowTrackerTest, LosesNothingWhileTheServerIsAway) {
  std::atomic<int> away = 0;
  FakeMlflow server([&](const FakeMlflow::Seen& seen) -> std::optional<FakeMlflow::Reply> {
    if (!seen.target.ends_with("log-batch") || away-- <= 0) return std::nullopt;
    return FakeMlflow::Reply{.bytes = http::testing::Answer(503, "")};
  });
  auto tracker = Open(server).value();
  away = 12;
  for (int step = 1; step <= 50; ++step) tracker->AddMetrics(step, {{"loss", 1.0 / step}});
  // The pauses take no time here, so the server is back before the run ends.
  while (away > 0) std::this_thread::yield();
  tracker->End(RunEnding::kFinished, "");
  EXPECT_EQ(server.runs().at(tracker->run_id()).metrics.size(), 50u);
  EXPECT_EQ(log_.Count("does not answer"), 1) << log_.text();
  EXPECT_EQ(log_.Count("misses"), 0) << log_.text();
}

TEST_F(MlflowTrackerTest, EndsThoughTheServerIsAway) {
  std::atomic<bool> away = false;
  FakeMlflow server([&](const FakeMlflow::Seen&) -> std::optional<FakeMlflow::Reply> {
    if (!away) return std::nullopt;
    return FakeMlflow::Reply{.bytes = http::testing::Answer(503, "")};
  });
  env_["MLFLOW_TRACKING_TOKEN"] = "hidden-token";
  auto tracker = Open(server).value();
  away = true;
  tracker->AddMetrics(1, {{"a", 1}, {"b", 2}});
  const TimePoint before = clock_.Now();
  tracker->End(RunEnding::kFailed, "rank 1 was lost");
  EXPECT_LT(clock_.Now() - before, std::chrono::minutes(2));
  EXPECT_THAT(log_.text(), AllOf(HasSubstr("MLflow misses events dropped=0 not_taken=2"),
                                 HasSubstr("MLflow does not know how the run ended"), Not(HasSubstr("hidden-token"))));
}

TEST_F(MlflowTrackerTest, NeverHoldsTheRunUp) {
  std::binary_semaphore answer(0);
  std::atomic<bool> holds = false;
  FakeMlflow server([&](const FakeMlflow::Seen&) -> std::optional<FakeMlflow::Reply> {
    if (holds.exchange(false)) answer.acquire();
    return std::nullopt;
  });
  auto tracker = Open(server).value();
  holds = true;
  constexpr int kSteps = 6000;
  for (int step = 1; step <= kSteps; ++step) tracker->AddMetrics(step, {{"loss", 1}});
  EXPECT_EQ(log_.Count("some steps are dropped"), 1);
  answer.release();
  tracker->End(RunEnding::kFinished, "");
  const std::size_t logged = server.runs().at(tracker->run_id()).metrics.size();
  EXPECT_LT(logged, std::size_t{kSteps});
  EXPECT_THAT(log_.text(), HasSubstr(fmt::format("MLflow misses events dropped={}", kSteps - logged)));
}

TEST_F(MlflowTrackerTest, ARefusedBatchIsToldOnce) {
  std::atomic<bool> refuses = false;
  FakeMlflow server([&](const FakeMlflow::Seen& seen) -> std::optional<FakeMlflow::Reply> {
    if (!refuses || !seen.target.ends_with("log-batch")) return std::nullopt;
    return FakeMlflow::Reply{
        .bytes = http::testing::Answer(400, R"({"error_code":"INVALID_PARAMETER_VALUE","message":"no metric"})")};
  });
  auto tracker = Open(server).value();
  refuses = true;
  for (int step = 1; step < 900; ++step) tracker->AddMetrics(step, {{"loss", 1}});
  tracker->End(RunEnding::kFailed, "");
  EXPECT_EQ(log_.Count("does not take the metrics"), 1) << log_.text();
  EXPECT_EQ(server.runs().at(tracker->run_id()).status, "FAILED");
}

TEST_F(MlflowTrackerTest, ADeletedExperimentIsNamed) {
  FakeMlflow server;
  options_.experiment = "deleted";
  Open(server).value();  // makes it
  const auto again = Open(server);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(again.error().message(), HasSubstr("\"deleted\" was deleted"));
}

}  // namespace
}  // namespace millrace::tracking
