// Whole runs with noise on the embeddings.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "millrace/train/testing/adapter_runs.h"

namespace millrace::train {
namespace {

using NeftuneTest = AdapterTest;

TEST_F(NeftuneTest, IsTheSameOnAnyRanks) {
  Options options = Tiny("noisy");
  options.neftune_alpha = 5;
  options.steps = 6;
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  options.neftune_alpha = 0;
  const Ran plain = Run(options);
  options.neftune_alpha = 5;
  EXPECT_GT(std::abs(plain.losses.at(1) - one.losses.at(1)), 1e-4) << "there is noise";
  struct Cut {
    int ranks, micro_batch;
    engine::ParallelOptions parallel;
  };
  for (const Cut& cut :
       {Cut{1, 8, {}}, Cut{1, 1, {.recompute = engine::Recompute::kFull}}, Cut{2, 2, {.zero = 3}},
        Cut{2, 2, {.tensor = 2}}, Cut{2, 2, {.tensor = 2, .sequence = true}}, Cut{2, 2, {.pipeline = 2}}}) {
    Options other = options;
    other.micro_batch = cut.micro_batch;
    other.parallel = cut.parallel;
    const Ran ran = RunRanks(other, cut.ranks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    for (const auto& [step, loss] : ran.losses) {
      EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << cut.ranks << " " << cut.micro_batch << " " << step;
    }
  }
}

TEST_F(NeftuneTest, AStoppedAdapterRunGoesOnBitForBitAndEvaluatesWithoutNoise) {
  const std::string base = Base("noise-base", 1);
  const auto noisy = [&](std::string_view run, double alpha) {
    Options options = Adapting(base, run);
    options.neftune_alpha = alpha;
    options.data.split.held_out = 0.2;
    options.eval.every_steps = 12;
    return options;
  };
  const Ran all = Run(noisy("whole", 5));
  ASSERT_TRUE(all.outcome) << all.outcome.error().ToString();
  ASSERT_TRUE(Run(noisy("parts", 5), 5).outcome);
  const Ran rest = Run(noisy("parts", 5));
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  EXPECT_EQ(rest.losses.begin()->first, 7);
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, all.losses.at(step)) << step;
  EXPECT_EQ(rest.evals.at(12).loss, all.evals.at(12).loss);

  // With a learning rate of almost nothing, noise changes what is learnt from, and not what is evaluated.
  Options still = noisy("still", 5), quiet = noisy("quiet", 0);
  for (Options* options : {&still, &quiet}) options->schedule = {.lr = 1e-12};
  const Ran with = Run(still), without = Run(quiet);
  ASSERT_TRUE(with.outcome && without.outcome);
  EXPECT_GT(std::abs(with.losses.at(12) - without.losses.at(12)), 1e-4);
  EXPECT_NEAR(with.evals.at(12).loss, without.evals.at(12).loss, 1e-7);
}

}  // namespace
}  // namespace millrace::train
