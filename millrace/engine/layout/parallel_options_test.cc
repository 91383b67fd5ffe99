#include "millrace/engine/layout/parallel_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

using ::testing::HasSubstr;

TEST(ParallelOptions, NamesInvert) {
  for (const auto schedule : {PipelineSchedule::kSimple, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
                              PipelineSchedule::kZeroBubble}) {
    EXPECT_EQ(ParsePipelineSchedule(PipelineScheduleName(schedule)), schedule);
  }
  for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(ParseRecompute(RecomputeName(recompute)), recompute);
  }
  EXPECT_FALSE(ParsePipelineSchedule("gpipe"));
  EXPECT_FALSE(ParseRecompute(""));
}

TEST(ParallelOptions, ShapeHasAllRanks) {
  for (int ranks = 1; ranks <= 24; ++ranks) {
    for (int tensor = 1; tensor <= ranks; ++tensor) {
      for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
        for (int zero = 0; zero <= 3; ++zero) {
          const auto shape = ShapeOf({.tensor = tensor, .pipeline = pipeline, .zero = zero}, ranks);
          ASSERT_EQ(shape.has_value(), ranks % (tensor * pipeline) == 0) << ranks << " " << tensor << " " << pipeline;
          if (!shape) continue;
          EXPECT_EQ(shape->ranks(), ranks);
          EXPECT_EQ(zero > 0 ? shape->replica : shape->shard, 1);
        }
      }
    }
  }
}

TEST(ParallelOptions, RefusesWithTheArithmetic) {
  const auto says = [](const ParallelOptions& options, std::string_view what) {
    const auto shape = ShapeOf(options, 8);
    ASSERT_FALSE(shape);
    EXPECT_EQ(shape.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(shape.error().ToString(), HasSubstr(what));
  };
  says({.tensor = 3}, "8 ranks are not a multiple of train.parallel.tensor 3");
  says({.tensor = 2, .pipeline = 3}, "8 ranks divided by train.parallel.tensor 2 are 4");
  says({.data = 8, .tensor = 2}, "8 ranks / (tensor 2 × pipeline 1) are 4");
  says({.shard = 3, .zero = 1}, "8 data-parallel ranks are not a multiple of train.parallel.shard 3");
  says({.shard = 2}, "zero 0 divides nothing");
  says({.pipeline = 2, .virtual_stages = 2}, "schedule interleaved takes 2 or more");
  says({.pipeline = 2, .schedule = PipelineSchedule::kInterleaved}, "schedule interleaved takes 2 or more");
}

}  // namespace
}  // namespace millrace::engine
