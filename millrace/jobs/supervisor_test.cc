#include "millrace/jobs/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/jobs/testing/fake_launcher.h"

namespace millrace::jobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Event = FakeLauncher::Event;

/// Runs a job whose attempts follow `script`, and keeps what was told.
class SupervisorTest : public testing::Test {
 protected:
  JobOutcome Run(std::function<FakeLauncher::Script(int)> script, Policy::Options policy = {}) {
    launcher_ = std::make_unique<FakeLauncher>(clock_, 2, std::move(script));
    launcher_->on_wait = [this] {
      if (stop_at_ && clock_.Now() >= *stop_at_) stop_.request_stop();
      if (on_wait_) on_wait_();
    };
    launcher_->machines = machines_;
    launcher_->node_of = node_of_;
    Supervisor::Options options{.name = "job", .policy = policy, .cost = cost_, .spent_before = spent_before_};
    options.on_event = [this](const JobEvent& event) { events_.push_back(event); };
    options.on_status = [this](const JobStatus& status) { statuses_.push_back(status); };
    Supervisor supervisor(*launcher_, clock_, Random(3), std::move(options));
    return supervisor.Run(stop_.get_token());
  }
  std::vector<std::string> EventNames() const {
    std::vector<std::string> names;
    for (const JobEvent& event : events_) names.push_back(event.object["event"]);
    return names;
  }

  FakeClock clock_;
  std::unique_ptr<FakeLauncher> launcher_;
  std::stop_source stop_;
  std::optional<TimePoint> stop_at_;
  std::function<void()> on_wait_;
  std::vector<NodeState> machines_;
  std::function<std::string(int)> node_of_;
  CostSpec cost_;
  double spent_before_ = 0;
  std::vector<JobEvent> events_;
  std::vector<JobStatus> statuses_;
};

FakeLauncher::Script Steps(std::uint64_t from, std::uint64_t to, Duration startup = seconds(3)) {
  FakeLauncher::Script script;
  for (std::uint64_t step = from; step <= to; ++step) {
    for (int rank : {0, 1}) script.push_back({startup + (step - from) * seconds(1), rank, step, {}});
  }
  return script;
}

FakeLauncher::Script EndedBy(FakeLauncher::Script script, ExitState exit) {
  Duration last = script.empty() ? Duration(0) : script.back().after;
  for (int rank : {0, 1}) script.push_back({last + milliseconds(500), rank, std::nullopt, exit});
  return script;
}

TEST_F(SupervisorTest, NoStatusShowsARankAheadOfTheJob) {
  Run([](int) { return EndedBy(Steps(1, 5, /*startup=*/seconds(0)), ExitState{.exit_code = 0}); });
  EXPECT_EQ(statuses_.back().step, 5u);
  bool stepped_at_start = false;
  for (const JobStatus& status : statuses_) {
    for (const JobStatus::Rank& rank : status.ranks) {
      if (rank.step) EXPECT_GE(status.step, rank.step) << status.message;
      stepped_at_start |= rank.step == 1u;
    }
  }
  EXPECT_TRUE(stepped_at_start);
}

TEST_F(SupervisorTest, TellsARunWithOneFailure) {
  JobOutcome outcome = Run([](int attempt) {
    if (attempt == 2) return EndedBy(Steps(50, 60), {});
    auto script = Steps(1, 57);
    script.push_back({script.back().after + milliseconds(100), 1, std::nullopt, {.signal = 9}});
    return script;
  });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kDone);
  EXPECT_THAT(EventNames(), ElementsAre("start", "failure", "restart", "resumed", "done"));
  const Json& failure = events_[1].object;
  EXPECT_EQ(failure["rank"], 1);
  EXPECT_EQ(failure["step"], 57);
  EXPECT_EQ(failure["hang"], false);
  EXPECT_EQ(failure["log"], "last words");
  const Json& restart = events_[2].object;
  EXPECT_EQ(restart["attempt"], 2);
  EXPECT_THAT(restart["reason"].get<std::string>(), HasSubstr("rank 1 was killed by signal 9"));
  const Json& resumed = events_[3].object;
  EXPECT_EQ(resumed["step"], 50);
  EXPECT_NEAR(resumed["resume_s"].get<double>(), 3 + restart["delay_s"].get<double>(), 1e-6);
  EXPECT_THAT(launcher_->signals, ElementsAre(SIGKILL));
  EXPECT_EQ(statuses_.back().state, "done");
  EXPECT_EQ(statuses_.back().restarts, 1);
  EXPECT_EQ(statuses_.back().step, 60u);
  EXPECT_EQ(statuses_.back().ranks.at(0).state, "exit status 0");
}

TEST_F(SupervisorTest, StopSavesAndLeaves) {
  stop_at_ = clock_.Now() + seconds(10);
  JobOutcome outcome = Run([](int) { return Steps(1, 1000); });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kInterrupted);
  EXPECT_EQ(outcome.exit_status, 130);
  EXPECT_THAT(EventNames(), ElementsAre("start", "stopping", "interrupted"));
  EXPECT_THAT(launcher_->signals, ElementsAre(SIGTERM));
  EXPECT_LE(clock_.Now() - *stop_at_, seconds(4));
}

TEST_F(SupervisorTest, AHangIsFoundAndCured) {
  JobOutcome outcome = Run([](int attempt) { return attempt == 1 ? Steps(1, 5) : EndedBy(Steps(6, 7), {}); });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kDone);
  EXPECT_EQ(events_[1].object["hang"], true);
  EXPECT_NEAR(events_[1].object["silent_s"].get<double>(), 30, 1.1);
}

TEST_F(SupervisorTest, AFreezeOfTheSupervisorIsNoHangOfItsRanks) {
  bool frozen = false;
  on_wait_ = [&] {  // the whole machine is suspended for an hour: no rank makes a step meanwhile
    if (frozen || clock_.Now() < launcher_->start_times[0] + seconds(5)) return;
    frozen = true;
    clock_.Advance(std::chrono::hours(1));
    launcher_->DelayEvents(std::chrono::hours(1));
  };
  const JobOutcome outcome = Run([](int) { return EndedBy(Steps(1, 20), {}); });
  EXPECT_TRUE(frozen);
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kDone);
  EXPECT_THAT(EventNames(), ElementsAre("start", "done"));
}

TEST_F(SupervisorTest, AMachineWhoseRanksFailTwiceIsSetAside) {
  machines_ = {
      {.name = "n1", .use = NodeState::Use::kRuns}, {.name = "n2", .use = NodeState::Use::kRuns}, {.name = "n3"}};
  node_of_ = [this](int rank) {
    const bool replaced = launcher_->machines[1].use == NodeState::Use::kSetAside;
    return rank == 0 ? "n1" : replaced ? "n3" : "n2";
  };
  const JobOutcome outcome = Run([](int attempt) {
    if (attempt > 2) return EndedBy(Steps(1, 9), {});
    auto script = Steps(1, 4);
    script.push_back({script.back().after + milliseconds(100), 1, std::nullopt, {.exit_code = 1}});
    return script;
  });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kDone);
  EXPECT_THAT(EventNames(),
              ElementsAre("start", "failure", "restart", "resumed", "failure", "node", "restart", "resumed", "done"));
  EXPECT_EQ(events_[5].object["node"], "n2");
  EXPECT_EQ(events_[5].object["state"], "set aside");
  EXPECT_THAT(events_[5].sentence, HasSubstr("node n2 is set aside: its ranks fail again and again"));
  EXPECT_EQ(statuses_.back().nodes.at(1).state, "set aside");
  EXPECT_EQ(statuses_.back().ranks.at(1).node, "n3");
}

TEST_F(SupervisorTest, TellsWhatBecomesOfMachines) {
  machines_ = {{.name = "n1", .use = NodeState::Use::kRuns}, {.name = "n2"}};
  int waits = 0;
  on_wait_ = [&] {
    NodeState& spare = launcher_->machines[1];
    ++waits;
    if (waits == 3) spare.warnings = {"disk: slow"};
    if (waits == 4) spare = {.name = "n2", .use = NodeState::Use::kLost, .reason = "node n2 is lost: gone"};
    if (waits == 6) spare = {.name = "n2", .use = NodeState::Use::kSpare};
    if (waits == 7) spare.use = NodeState::Use::kRuns;
  };
  Run([](int) { return EndedBy(Steps(1, 20), {}); });
  std::vector<std::string> sentences;
  for (const JobEvent& event : events_) {
    if (event.object["event"] == "node") sentences.push_back(event.sentence);
  }
  EXPECT_THAT(sentences, ElementsAre("node n2: disk: slow", "node n2 is lost: gone", "node n2 is ready again",
                                     "node n2, a spare, has ranks from now on"));
}

TEST_F(SupervisorTest, RanksRegroupWithoutARestart) {
  on_wait_ = [this] {
    if (launcher_->starts == 1 && clock_.Now() > launcher_->start_times[0] + seconds(8)) {
      launcher_->regroup_reason = "2 nodes are ready again; there were 1";
    }
  };
  const JobOutcome outcome = Run([](int attempt) { return attempt == 1 ? Steps(1, 100) : EndedBy(Steps(7, 9), {}); });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kDone);
  EXPECT_THAT(EventNames(), ElementsAre("start", "regroup", "restart", "done"));
  EXPECT_THAT(launcher_->signals, ElementsAre(SIGTERM));
  EXPECT_EQ(events_[2].object["reason"], "2 nodes are ready again; there were 1");
  EXPECT_EQ(statuses_.back().restarts, 0);
  EXPECT_EQ(statuses_.back().attempt, 2);
}

TEST_F(SupervisorTest, AJobLeavesMachinesThatAreTakenAway) {
  on_wait_ = [this] {
    if (clock_.Now() > launcher_->start_times[0] + seconds(8)) launcher_->leave_reason = "node n1 is to be taken away";
  };
  const JobOutcome outcome = Run([](int) { return Steps(1, 1000); });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kInterrupted);
  EXPECT_TRUE(outcome.may_return);
  EXPECT_EQ(outcome.exit_status, 130);
  EXPECT_THAT(outcome.message, HasSubstr("node n1 is to be taken away; stopped at step"));
  EXPECT_THAT(launcher_->signals, ElementsAre(SIGTERM));
}

TEST_F(SupervisorTest, AJobSavesAndEndsWhenItHasCostTooMuch) {
  cost_ = {.price_per_hour = 3600, .currency = "EUR", .cap = 60};
  spent_before_ = 20;
  machines_ = {{.name = "n1", .use = NodeState::Use::kRuns}, {.name = "n2"}};
  const TimePoint begun = clock_.Now();
  const JobOutcome outcome = Run([](int) { return Steps(1, 1000); });
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kInterrupted);
  EXPECT_FALSE(outcome.may_return);
  EXPECT_THAT(outcome.message, HasSubstr("and cost.cap is 60.00 EUR; stopped at step"));
  EXPECT_THAT(launcher_->signals, ElementsAre(SIGTERM));
  EXPECT_LE(clock_.Now() - begun, seconds(23));  // two machines at 1 EUR a second, and the time to leave
  ASSERT_TRUE(statuses_.back().cost);
  EXPECT_GE(statuses_.back().cost->spent, 60);
  EXPECT_EQ(events_.back().object["currency"], "EUR");
  EXPECT_THAT(events_.back().sentence, HasSubstr("; it cost "));
}

TEST_F(SupervisorTest, RanksThatCannotBeStartedEndTheJob) {
  FakeLauncher launcher(clock_, 1, [](int) { return FakeLauncher::Script(); });
  launcher.start_error = Error(Code::kNotFound, "no millrace-train");
  Supervisor supervisor(launcher, clock_, Random(1), {.name = "job"});
  JobOutcome outcome = supervisor.Run({});
  EXPECT_EQ(outcome.ending, JobOutcome::Ending::kFailed);
  EXPECT_EQ(outcome.exit_status, 4);
}

TEST_F(SupervisorTest, SaysOnceWhatAStartWaitsFor) {
  FakeLauncher launcher(clock_, 2, [](int) { return EndedBy(Steps(1, 2), {}); });
  launcher.start_error = Error(Code::kUnavailable, "node n2 is away");
  const TimePoint begin = clock_.Now();
  launcher.on_wait = [&] {
    if (clock_.Now() - begin > seconds(100)) launcher.start_error.reset();
  };
  Supervisor::Options options{.name = "job", .policy = {.max_restarts = 0, .start_patience = seconds(600)}};
  options.on_event = [this](const JobEvent& event) { events_.push_back(event); };
  options.on_status = [this](const JobStatus& status) { statuses_.push_back(status); };
  EXPECT_EQ(Supervisor(launcher, clock_, Random(1), std::move(options)).Run({}).ending, JobOutcome::Ending::kDone);
  EXPECT_THAT(EventNames(), ElementsAre("waiting", "start", "done"));
  EXPECT_THAT(events_[0].sentence, HasSubstr("node n2 is away"));
  EXPECT_EQ(events_[1].object["attempt"], 1);
  EXPECT_EQ(statuses_[1].state, "starting");
}

/// Whatever ranks do: attempts never overlap (FakeLauncher checks), restarts stay within their limit, a job ends, and
/// after a stop it ends within the grace.
TEST_F(SupervisorTest, KeepsItsPromisesUnderRandomRanks) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    stop_ = std::stop_source();
    stop_at_.reset();
    if (random.Below(3) == 0) stop_at_ = clock_.Now() + seconds(random.Below(200));
    Policy::Options policy{
        .max_restarts = static_cast<int>(random.Below(6)), .start_timeout = seconds(60), .grace = seconds(20)};
    bool deaf = random.Below(2) == 0;
    std::uint64_t step = 0;
    auto script = [&](int) {
      if (deaf) launcher_->leaves_after.reset();
      FakeLauncher::Script events;
      Duration at = seconds(random.Below(5));
      for (std::uint64_t i = random.Below(30); i > 0; --i) {
        at += milliseconds(random.Below(4000));
        events.push_back({at, static_cast<int>(random.Below(2)), ++step, {}});
      }
      for (std::uint64_t i = random.Below(3); i > 0; --i) {
        at += milliseconds(random.Below(1000));
        ExitState exit{.exit_code = static_cast<int>(random.Below(2)), .signal = random.Below(3) == 0 ? 9 : 0};
        events.push_back({at, static_cast<int>(random.Below(2)), std::nullopt, exit});
      }
      return events;
    };
    events_.clear();
    JobOutcome outcome = Run(script, policy);
    EXPECT_LE(launcher_->starts, policy.max_restarts + 1) << seed;
    if (outcome.ending == JobOutcome::Ending::kInterrupted) {
      EXPECT_TRUE(stop_at_.has_value()) << seed;
      EXPECT_LE(clock_.Now() - *stop_at_, policy.grace + seconds(1)) << seed;
    }
    EXPECT_EQ(EventNames().back(), outcome.ending == JobOutcome::Ending::kDone     ? "done"
                                   : outcome.ending == JobOutcome::Ending::kFailed ? "failed"
                                                                                   : "interrupted");
  }
}

TEST(SupervisorOptions, FollowTheJobFile) {
  Spec spec{.name = "demo"};
  spec.run.max_restarts = 7;
  spec.run.launcher = "ssh";
  spec.run.ssh.connect_timeout = seconds(9);
  spec.train.global_batch = 16;
  Supervisor::Options options = Supervisor::OptionsOf(spec, /*in_sagemaker=*/false);
  EXPECT_EQ(options.name, "demo");
  EXPECT_EQ(options.policy.max_restarts, 7);
  EXPECT_EQ(options.policy.start_patience, seconds(9));
  EXPECT_EQ(options.policy.sequences_per_step, 16U);
  spec.run.launcher = "kubernetes";
  EXPECT_GT(Supervisor::OptionsOf(spec, false).policy.start_patience, std::chrono::hours(24));  // for pods
  spec.run.command = {"python3"};
  options = Supervisor::OptionsOf(spec, /*in_sagemaker=*/true);
  EXPECT_FALSE(options.policy.reports_steps);
  EXPECT_EQ(options.policy.sequences_per_step, 0U);
  EXPECT_LT(options.policy.grace, seconds(120));  // SageMaker kills then
}

}  // namespace
}  // namespace millrace::jobs
