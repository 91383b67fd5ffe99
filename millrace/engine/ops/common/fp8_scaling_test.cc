#include <gtest/gtest.h>

#include <limits>

#include "millrace/engine/ops/common/largest_values.h"
#include "millrace/engine/ops/common/step_kernels.h"

namespace millrace::engine::ops {
namespace {

TEST(Fp8ScalingTest, NamesAreParsed) {
  for (const Fp8Scaling scaling : {Fp8Scaling::kNone, Fp8Scaling::kCurrent, Fp8Scaling::kDelayed, Fp8Scaling::kBlock}) {
    EXPECT_EQ(ParseFp8Scaling(Fp8ScalingName(scaling)), scaling);
  }
  EXPECT_FALSE(ParseFp8Scaling("tensor"));
}

TEST(Fp8ScalingTest, AGuessFollowsGrowthAtOnceAndForgetsSlowly) {
  EXPECT_EQ(DecayedAmax(0, 3), 3);
  EXPECT_EQ(DecayedAmax(2, 3), 3);
  float amax = 4;
  for (int step = 0; step < 256; ++step) amax = DecayedAmax(amax, 0.5F);
  EXPECT_NEAR(amax, 2, 1e-3);
  for (int step = 0; step < 10'000; ++step) amax = DecayedAmax(amax, 0.5F);
  EXPECT_EQ(amax, 0.5F);
}

TEST(Fp8ScalingTest, WhatIsNoNumberChangesNoGuess) {
  for (const float seen : {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(DecayedAmax(2, seen), 2);
    EXPECT_EQ(DecayedAmax(0, seen), 0);
  }
}

TEST(Fp8ScalingTest, EachTensorOfALayerHasItsValues) {
  LargestValues largest(3, at::kCPU);
  EXPECT_EQ(largest.layers(), 3);
  EXPECT_FALSE(largest.HasAmax(1, Fp8Tensor::kWeight));
  largest.SetAmax({{1, 2, 3}, {4, 0, 6}, {7, 8, 9}});
  EXPECT_EQ(largest.amax(0, Fp8Tensor::kOutputGradient).item<float>(), 3);
  EXPECT_EQ(largest.amax(1, Fp8Tensor::kInput).item<float>(), 4);
  EXPECT_TRUE(largest.HasAmax(1, Fp8Tensor::kInput));
  EXPECT_FALSE(largest.HasAmax(1, Fp8Tensor::kWeight));
  largest.seen(2, Fp8Tensor::kWeight).fill_(5);
  EXPECT_EQ(largest.TakeSeen(), (std::vector<OfFp8Tensors>{{0, 0, 0}, {0, 0, 0}, {0, 5, 0}}));
  EXPECT_EQ(largest.TakeSeen(), std::vector<OfFp8Tensors>(3));
}

TEST(Fp8ScalingTest, TheScopeOfAThreadSaysIt) {
  EXPECT_EQ(ScalingInFp8(), Fp8Scaling::kNone);
  LargestValues largest(1, at::kCPU);
  const StepKernels kernels{.fp8 = Fp8Scaling::kDelayed, .largest = &largest};
  const KernelScope scope(kernels);
  EXPECT_EQ(ScalingInFp8(), Fp8Scaling::kDelayed);
  EXPECT_EQ(LargestInFp8(), &largest);
}

}  // namespace
}  // namespace millrace::engine::ops
