#include "millrace/train/step_end/loss_scale.h"

#include <gtest/gtest.h>

#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

TEST(LossScale, HalvesAtOnceAndDoublesSlowly) {
  LossScale scale(1024);
  scale.Update(false);
  EXPECT_EQ(scale.value(), 512);
  for (int step = 1; step < LossScale::kGoodSteps; ++step) scale.Update(true);
  EXPECT_EQ(scale.value(), 512);
  scale.Update(true);
  EXPECT_EQ(scale.value(), 1024);
  scale.Update(true);
  scale.Update(false);
  for (int step = 0; step < LossScale::kGoodSteps - 1; ++step) scale.Update(true);
  EXPECT_EQ(scale.value(), 512) << "the count begins anew";
  while (!scale.is_hopeless()) scale.Update(false);
  EXPECT_LT(scale.value(), LossScale::kLeast);
}

TEST(LossScale, GoesOnWhereItStood) {
  LossScale scale(1024), other;
  for (int step = 0; step < LossScale::kGoodSteps - 1; ++step) scale.Update(true);
  ASSERT_TRUE(other.Restore(scale.ToJson()));
  other.Update(true);
  EXPECT_EQ(other.value(), 2048);
  for (const char* wrong : {R"({"value": 0, "good_steps": 1})", R"({"value": 1, "good_steps": 2000})", "{}"}) {
    EXPECT_FALSE(other.Restore(ParseJson(wrong, "test").value())) << wrong;
  }
}

using LossScaleRuns = TrainTest;

/// In float32 a factor that is a power of two changes no bit of the gradients.
TEST_F(LossScaleRuns, AFactorChangesNothingThatIsLearnt) {
  const Ran plain = Run(Tiny("plain"));
  Options options = Tiny("scaled");
  options.loss_scale = 4096;
  const Ran scaled = Run(options);
  ASSERT_TRUE(scaled.outcome) << scaled.outcome.error().ToString();
  EXPECT_EQ(scaled.losses, plain.losses);
}

TEST_F(LossScaleRuns, AnInfiniteGradientIsNotLearntFrom) {
  Options options = Tiny("overflow");
  options.loss_scale = 0x1p134;  // over 256 labels, times a gradient: beyond float32
  options.checkpoint.url = CheckpointUrl("overflow");
  std::vector<double> scales;
  int overflows = 0;
  on_step_ = [&](const StepReport& report) {
    scales.push_back(report.loss_scale.value());
    overflows += report.overflow ? 1 : 0;
  };
  const Ran whole = Run(options);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  EXPECT_GT(overflows, 2);
  EXPECT_LT(overflows, 12);
  EXPECT_EQ(scales.at(1), 0x1p133);
  EXPECT_EQ(whole.losses.size(), 12U);

  Options again = options;
  again.checkpoint.url = CheckpointUrl("overflow-stopped");
  const Ran stopped = Run(again, /*stop_after=*/5);
  const std::vector<double> first = scales;
  const Ran rest = Run(again);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
  EXPECT_EQ(std::vector(scales.end() - static_cast<std::ptrdiff_t>(rest.losses.size()), scales.end()),
            std::vector(first.begin() + 12 - static_cast<std::ptrdiff_t>(rest.losses.size()), first.begin() + 12));
}

}  // namespace
}  // namespace millrace::train
