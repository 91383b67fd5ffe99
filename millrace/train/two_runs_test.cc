// Two runs that save to one place: one of them ends, and neither takes the other's model for its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/open/open.h"
#include "millrace/train/testing/train_runs.h"
#include "millrace/train/trainer.h"

namespace millrace::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TwoRunsTest : public TrainTest {
 protected:
  TwoRunsTest() { loses_ranks_ = true; }  // checkpoints may fail

  Options Saving(std::string_view place, const std::string& run, int attempt = 1) const {
    Options options = Tiny(run);
    options.checkpoint.url = CheckpointUrl(place);
    options.run_id = run;
    options.attempt = attempt;
    return options;
  }
  /// Waits for a checkpoint, which is saved beside the steps.
  static void AwaitCheckpoint(const Options& options) {
    auto connection = object::OpenConnection({}).value();
    const TimePoint deadline = SystemClock().Now() + std::chrono::seconds(60);
    while (!checkpoint::Reader::Open(*connection, options.checkpoint.url)) {
      ASSERT_LT(SystemClock().Now(), deadline);
      std::this_thread::yield();
    }
  }
  /// Runs `options`. After its step `step`, and its checkpoint if it has one by then, `other` takes over, and runs from
  /// its beginning to its end. The step after the next checkpoint waits until that one has failed, unless it is the
  /// run's last.
  Ran RunWithOther(const Options& options, std::uint64_t step, Options other, int ranks = 1) {
    other.takes_over = true;
    on_step_ = [this, step, options, other](const StepReport& report) {
      if (report.step != step) return;
      if (options.checkpoint.every_steps < step) AwaitCheckpoint(options);
      const auto running = std::exchange(on_step_, nullptr);  // keeps what this call has captured
      const Ran ran = Run(other);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      ASSERT_FALSE(ran.outcome->lost) << ran.outcome->lost->ToString();
      const std::uint64_t next = step - step % options.checkpoint.every_steps + options.checkpoint.every_steps;
      on_step_ = [this, next](const StepReport& later) {
        if (later.step == next + 1) EXPECT_TRUE(failed_saves_.try_acquire_for(std::chrono::seconds(60)));
      };
    };
    return RunRanks(options, ranks);
  }
  static std::string RunOf(const Options& options) {
    auto connection = object::OpenConnection({}).value();
    return checkpoint::Reader::Open(*connection, options.checkpoint.url).value()->manifest().run.id;
  }
};

TEST_F(TwoRunsTest, TheRunThatIsBehindEndsAndSaysWhy) {
  for (const int ranks : {1, 2}) {
    const Options first = Saving(fmt::format("behind-{}", ranks), "first");
    Options second = Saving(fmt::format("behind-{}", ranks), "second");
    const Ran ran = RunWithOther(first, 5, second, ranks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    ASSERT_TRUE(ran.outcome->lost) << "with " << ranks << " ranks";
    EXPECT_LT(ran.outcome->step, 12u);
    const std::string why = ran.outcome->lost->ToString();
    EXPECT_THAT(why, HasSubstr(first.checkpoint.url));
    EXPECT_THAT(why, HasSubstr("has taken over"));
    EXPECT_THAT(why, HasSubstr("epoch 2 after 1"));
    EXPECT_THAT(ran.saved, ElementsAre(4));
    EXPECT_EQ(RunOf(first), "second");
  }
}

TEST_F(TwoRunsTest, ASecondRunIsRefusedWhileTheOwnerLives) {
  const Options first = Saving("refused", "first");
  Ran refused;
  on_step_ = [&](const StepReport& report) {
    if (report.step != 6) return;
    const auto running = std::exchange(on_step_, nullptr);  // keeps what this call has captured
    refused = RunRanks(Saving("refused", "second"), 2);
  };
  const Ran ran = Run(first);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_FALSE(ran.outcome->lost);
  EXPECT_EQ(ran.outcome->step, 12u);
  ASSERT_TRUE(refused.outcome) << refused.outcome.error().ToString();
  ASSERT_TRUE(refused.outcome->lost);
  EXPECT_THAT(refused.outcome->lost->ToString(), HasSubstr("has an owner: "));
  EXPECT_TRUE(refused.losses.empty());
  EXPECT_EQ(RunOf(first), "first");
}

TEST_F(TwoRunsTest, TheLastCheckpointDecidesToo) {
  Options first = Saving("last", "first");
  first.checkpoint.every_steps = 100;  // only at the end
  const Ran ran = RunWithOther(first, 5, Saving("last", "second"));
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  ASSERT_TRUE(ran.outcome->lost) << "the model there is the other's";
  EXPECT_EQ(RunOf(first), "second");
}

TEST_F(TwoRunsTest, ALaterAttemptDoesNotGoOnFromAnothersModel) {
  Options first = Saving("again", "first");
  ASSERT_TRUE(Run(first, 4).outcome);  // saves step 5
  Options second = Saving("again", "second");
  second.steps_this_run = 3;
  ASSERT_TRUE(Run(second).outcome);
  first.attempt = 2;
  const Ran again = Run(first);
  ASSERT_TRUE(again.outcome) << again.outcome.error().ToString();
  ASSERT_TRUE(again.outcome->lost);
  EXPECT_THAT(again.outcome->lost->ToString(), HasSubstr("while this one ran"));
  EXPECT_TRUE(again.losses.empty());
  const Ran third = Run(Saving("again", "third"));  // whoever begins anew goes on from what is there
  ASSERT_TRUE(third.outcome) << third.outcome.error().ToString();
  EXPECT_FALSE(third.outcome->lost);
  EXPECT_EQ(third.plan.resumed_from, 8u);
}

TEST_F(TwoRunsTest, ALaterAttemptIsNotDoneByAnothersModel) {
  ASSERT_TRUE(Run(Saving("done", "second")).outcome);
  const Ran again = Run(Saving("done", "first", 2));
  ASSERT_TRUE(again.outcome) << again.outcome.error().ToString();
  EXPECT_TRUE(again.outcome->lost) << "the first attempt had steps to make, and committed nothing";
  const Ran anew = Run(Saving("done", "third"));
  ASSERT_TRUE(anew.outcome) << anew.outcome.error().ToString();
  EXPECT_FALSE(anew.outcome->lost);
}

TEST_F(TwoRunsTest, AttemptsOfOneRunGoOnFromEachOther) {
  ASSERT_TRUE(Run(Saving("attempts", "only"), 2).outcome);
  const Ran second = Run(Saving("attempts", "only", 2), 6);
  ASSERT_TRUE(second.outcome) << second.outcome.error().ToString();
  EXPECT_EQ(second.plan.resumed_from, 3u);
  const Ran third = RunRanks(Saving("attempts", "only", 3), 2);
  ASSERT_TRUE(third.outcome) << third.outcome.error().ToString();
  EXPECT_FALSE(third.outcome->lost);
  EXPECT_EQ(third.outcome->step, 12u);
}

TEST_F(TwoRunsTest, LocalCheckpointsAreNoExcuse) {
  Options first = Saving("local", "first");
  first.checkpoint.local = checkpoint::LocalTierOptions{.path = (folder_->path() / "disk").native(), .keep = 2};
  first.checkpoint.local_every_steps = 1;
  first.checkpoint.every_steps = 6;
  const Ran ran = RunWithOther(first, 7, Saving("local", "second"));
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_TRUE(ran.outcome->lost);
  EXPECT_EQ(RunOf(first), "second");
}

}  // namespace
}  // namespace millrace::train
