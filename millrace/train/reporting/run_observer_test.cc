#include "millrace/train/reporting/run_observer.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "millrace/tracking/testing/collected_log.h"
#include "millrace/tracking/testing/fake_mlflow.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Pair;
using tracking::FakeMlflow;

class RunObserverTest : public TrainTest {
 protected:
  RunObserverTest() {
    // Checkpoints are told of by another thread, so their place is open.
    observer_.on_plan = [this](const Plan& plan) { Note("plan of {}", plan.steps); };
    observer_.on_restart = [this](const RunRestart& restart) { Note("restart at {}", restart.step); };
    observer_.on_step = [this](const StepReport& report) { Note("step {}", report.step); };
    observer_.on_figures = [this](const StepReport& means) { Note("figures {} of {}", means.step, means.averaged); };
    observer_.on_evaluation = [this](const EvalReport& report) { Note("evaluation {}", report.step); };
    observer_.on_end = [this](const RunEnd& end) {
      Note("end {} {}", end.outcome.step, end.error ? "failed" : end.outcome.stopped ? "stopped" : "complete");
    };
    more_observers_ = {&observer_};
  }
  Options Short(std::string_view run) const {
    Options options = Tiny(run);
    options.steps = 4;
    options.schedule.warmup_steps = 1;
    options.log = log_.logger();
    return options;
  }
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) {
    events_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  CallingObserver observer_;
  std::vector<std::string> events_;
  tracking::CollectedLog log_;
};

TEST_F(RunObserverTest, HearsOfARunInOrder) {
  Options options = Short("observed");
  options.checkpoint.url = CheckpointUrl("observed");
  options.reports.every_steps = 2;
  options.data.split.held_out = 0.2;
  options.eval.every_steps = 3;
  const Ran first = RunRanks(options, 2, /*stop_after=*/2);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  EXPECT_THAT(events_, ElementsAre("plan of 4", "step 1", "step 2", "figures 2 of 2", "step 3", "figures 3 of 1",
                                   "end 3 stopped"));
  events_.clear();
  const Ran second = RunRanks(options, 2);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  EXPECT_THAT(events_,
              ElementsAre("plan of 4", "restart at 3", "step 4", "figures 4 of 1", "evaluation 4", "end 4 complete"));
}

TEST_F(RunObserverTest, HearsHowARunFails) {
  Options options = Short("fails");
  options.schedule.lr = 1e30;  // the loss is soon no number
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_THAT(events_.back(), HasSubstr("failed"));
}

TEST_F(RunObserverTest, OneThatThrowsIsLeft) {
  CallingObserver throws;
  int told = 0;
  throws.on_step = [&](const StepReport& report) {
    ++told;
    if (report.step == 2) throw std::runtime_error("no more");
  };
  more_observers_ = {&throws, &observer_};
  const Ran ran = Run(Short("throws"));
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(told, 2);
  EXPECT_THAT(events_, Contains("step 4"));
  EXPECT_EQ(log_.Count("an observer of the run failed; the run goes on without it observer=test"), 1) << log_.text();
  EXPECT_EQ(log_.Count("no more"), 1);
}

TEST_F(RunObserverTest, ATrackerHasOneRunForAllAttempts) {
  FakeMlflow server;
  Options options = Short("tracked");
  options.checkpoint.url = CheckpointUrl("tracked");
  options.hyperparameters = {{"train.optimizer.lr", 0.005}};
  options.tracking.mlflow = {.url = server.url()};
  const Ran first = RunRanks(options, 2, /*stop_after=*/1);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  ASSERT_EQ(server.runs().size(), 1u);
  const std::string id = server.runs().begin()->first;
  EXPECT_EQ(server.runs().at(id).status, "KILLED");
  const Ran second = RunRanks(options, 2);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  ASSERT_EQ(server.runs().size(), 1u);
  const FakeMlflow::Run run = server.runs().at(id);
  EXPECT_EQ(run.name, "tracked");
  EXPECT_EQ(run.status, "FINISHED");
  EXPECT_THAT(run.params, ElementsAre(Pair("train.optimizer.lr", "0.005")));
  EXPECT_THAT(run.tags, IsSupersetOf({Pair("millrace.resumed_from", "2"), Pair("checkpoint.step", "4"),
                                      Pair("checkpoint.url", options.checkpoint.url.c_str())}));
  std::map<std::uint64_t, double> losses;
  for (const FakeMlflow::Metric& metric : run.metrics) {
    if (metric.key == "train/loss") losses[metric.step] = metric.value;
  }
  std::map<std::uint64_t, double> expected = first.losses;
  expected.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, expected);
  EXPECT_EQ(log_.Count("misses"), 0) << log_.text();
}

TEST_F(RunObserverTest, ATrackerThatRefusesEndsOnlyANewRun) {
  FakeMlflow server([](const FakeMlflow::Seen&) -> std::optional<FakeMlflow::Reply> {
    return FakeMlflow::Reply{.bytes = http::testing::Answer(401, "no")};
  });
  Options options = Short("refused");
  options.checkpoint.url = CheckpointUrl("refused");
  ASSERT_TRUE(Run(options, /*stop_after=*/1).outcome);
  Options tracked = options;
  tracked.tracking.mlflow = {.url = server.url()};
  EXPECT_TRUE(Run(tracked).outcome);
  EXPECT_EQ(log_.Count("a tracker cannot be opened; the run goes on without it"), 1) << log_.text();
  events_.clear();
  tracked.checkpoint.url = CheckpointUrl("refused-anew");
  const Ran refused = Run(tracked);
  ASSERT_FALSE(refused.outcome);
  EXPECT_EQ(refused.outcome.error().code(), Code::kPermissionDenied);
  EXPECT_TRUE(events_.empty());
}

TEST_F(RunObserverTest, CallsThePythonFunctionsOfTheUser) {
  const std::filesystem::path out = folder_->path() / "calls";
  const std::string hooks = fmt::format(R"(
def write(*words):
    with open({:?}, "a") as file:
        print(*words, file=file)

def on_plan(plan):
    write("plan", plan["steps"])

def on_step(step):
    write("step", step["step"], step["loss"] > 0)

def on_checkpoint(checkpoint):
    write("checkpoint", checkpoint["step"], checkpoint["tier"])

def on_end(end):
    write("end", end["ending"])
)",
                                        out.string());
  Options options = Short("called");
  options.checkpoint.url = CheckpointUrl("called");
  options.callbacks = (folder_->path() / "hooks.py").string();
  ASSERT_TRUE(WriteFileAtomic(options.callbacks, AsBytes(hooks)));
  const Ran ran = RunRanks(options, 2);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(ReadFile(out).value(),
            "plan 4\nstep 1 True\nstep 2 True\nstep 3 True\nstep 4 True\ncheckpoint 4 store\nend complete\n");
  EXPECT_EQ(log_.Count("failed"), 0) << log_.text();
}

}  // namespace
}  // namespace millrace::train
