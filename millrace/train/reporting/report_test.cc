#include "millrace/train/reporting/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/train/reporting/step_metrics.h"

namespace millrace::train {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

StepReport Step(std::uint64_t step, double seconds, double waited_for_checkpoints) {
  StepReport report{.step = step, .loss = 5.0 - 0.5 * static_cast<double>(step), .tokens = 100, .step_s = seconds};
  report.data_wait_s = report.data_wait_on_s[1] = seconds / 4;
  report.checkpoint_wait_s = waited_for_checkpoints;
  report.flops_per_token = 1e9;
  return report;
}

TEST(StepInterval, LinesHaveTheMeansOfTheStepsSinceTheLastOne) {
  StepInterval interval;
  interval.Add(Step(1, 1.0, 0.5));
  interval.Add(Step(2, 2.0, 0));
  interval.Add(Step(3, 3.0, 0.1));
  const StepReport line = interval.TakeMeans();
  EXPECT_EQ(line.step, 3u);
  EXPECT_EQ(line.averaged, 3u);
  EXPECT_EQ(line.loss, 3.5) << "of the last step";
  EXPECT_EQ(line.tokens, 100u) << "of a step";
  EXPECT_DOUBLE_EQ(line.step_s, 2.0);
  EXPECT_DOUBLE_EQ(line.tokens_per_s(), 50);
  EXPECT_DOUBLE_EQ(line.data_wait_s, 0.5);
  EXPECT_DOUBLE_EQ(line.data_wait_on_s[1], 0.5);
  EXPECT_DOUBLE_EQ(line.checkpoint_wait_s, 0.2);
  EXPECT_DOUBLE_EQ(line.flops_per_token, 1e9);
  EXPECT_THAT(line.ToText(10), EndsWith("    50 tok/s  data 25 %"));
  EXPECT_EQ(line.ToJson()["averaged_steps"], 3);
  EXPECT_EQ(line.ToJson()["tokens_per_s"], 50);

  interval.Add(Step(4, 1.0, 0));
  const StepReport next = interval.TakeMeans();
  EXPECT_EQ(next.averaged, 1u) << "each step counts once";
  EXPECT_DOUBLE_EQ(next.step_s, 1.0);
}

TEST(StepMetrics, SpeedIsThatOfTheLine) {
  StepMetrics metrics({.steps = 40}, 1e12);
  EXPECT_THAT(metrics.PrometheusText(), Not(HasSubstr("millrace_train_loss"))) << "there is none yet";
  StepInterval interval;
  for (const auto& report : {Step(1, 1.0, 0), Step(2, 3.0, 0)}) {
    interval.Add(report);
    metrics.OnStep(report);
  }
  metrics.OnFigures(interval.TakeMeans());
  const std::string text = metrics.PrometheusText();
  for (const char* line : {"millrace_train_tokens_per_second 50", "millrace_train_model_flops_utilization 0.05",
                           "millrace_train_step_seconds_sum 4", "millrace_train_loss 4"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{}\n", line)));
  }
}

TEST(RunOutcome, ARunWithoutAStepHasNoLoss) {
  const RunOutcome idle{.step = 12, .steps = 12};
  EXPECT_EQ(idle.ToText(), "nothing to do: the run has its 12 steps; raise train.steps");
  EXPECT_FALSE(idle.ToJson().contains("loss"));
  EXPECT_EQ(idle.ToJson()["ending"], "complete");
  const RunOutcome done{.step = 12, .steps = 12, .loss = 2.5};
  EXPECT_EQ(done.ToText(), "done: 12 steps, loss 2.5000");
  EXPECT_EQ(done.ToJson()["loss"], 2.5);
  const RunOutcome part{.step = 6, .steps = 12, .loss = 2.5};
  EXPECT_EQ(part.ToText(), "done for this run: step 6 of 12, loss 2.5000; run the job again to go on");
}

}  // namespace
}  // namespace millrace::train
