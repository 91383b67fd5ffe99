#include "millrace/jobs/training_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/jobs/testing/small_job.h"

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

TEST(TrainingSetup, StateOfTheOptimizerCanBeBfloat16) {
  const auto plain = ParseSmall({"train.precision=bf16"});
  const auto small = ParseSmall({"train.precision=bf16", "train.optimizer={moments: bf16, stochastic_rounding: true}"});
  ASSERT_TRUE(plain && small);
  EXPECT_EQ(TrainingSetupOf(*plain).moment_bytes, 4);
  EXPECT_EQ(TrainingSetupOf(*plain).master_bytes(), 4);
  EXPECT_EQ(TrainingSetupOf(*small).moment_bytes, 2);
  EXPECT_EQ(TrainingSetupOf(*small).master_bytes(), 0);
  EXPECT_THAT(ParseSmall({"train.optimizer.moments=fp8"}).error().ToString(), HasSubstr("f32, bf16"));
  EXPECT_THAT(ParseSmall({"train.optimizer.stochastic_rounding=true"}).error().ToString(),
              HasSubstr("write train.precision: bf16 (it is f32)"));
}

TEST(TrainingSetup, StateOfTheOptimizerCanBeOnTheHost) {
  EXPECT_FALSE(TrainingSetupOf(ParseSmall({}).value()).offloads_state);
  EXPECT_TRUE(TrainingSetupOf(ParseSmall({"train.optimizer.offload=true"}).value()).offloads_state);
}

}  // namespace
}  // namespace millrace::jobs
