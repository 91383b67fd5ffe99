// Whole runs whose optimizer keeps its state in bfloat16 (engine::StateStorage).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/open/open.h"
#include "millrace/train/testing/train_runs.h"
#include "millrace/train/trainer.h"

namespace millrace::train {
namespace {

using testing::HasSubstr;

/// State in bfloat16 is rounded alike after a resume, and by ranks that divide it.
TEST_F(TrainTest, RoundedStateResumesBitForBit) {
  for (const bool rounds_weights : {false, true}) {
    const std::string name = rounds_weights ? "rounded-weights" : "rounded-moments";
    Options options = Tiny(name);
    options.precision = rounds_weights ? at::kBFloat16 : at::kFloat;
    options.optimizer.storage = {.bf16_moments = true, .rounds_weights = rounds_weights, .seed = options.seed};
    options.steps = 8;
    const Ran whole = Run(options);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    EXPECT_LT(whole.losses.at(8), whole.losses.at(1));
    options.checkpoint.url = CheckpointUrl(name);
    const Ran first = Run(options, 2), second = Run(options);
    ASSERT_TRUE(first.outcome && second.outcome);
    std::map<std::uint64_t, double> joined = first.losses;
    joined.insert(second.losses.begin(), second.losses.end());
    EXPECT_EQ(joined, whole.losses);
    auto connection = object::OpenConnection({}).value();
    const auto reader = checkpoint::Reader::Open(*connection, options.checkpoint.url).value();
    for (const auto& [tensor, meta] : reader->manifest().tensors) {
      EXPECT_FALSE(rounds_weights && tensor.starts_with("optimizer/master/")) << tensor;
      if (tensor.starts_with("optimizer/exp_avg")) EXPECT_EQ(checkpoint::DTypeName(meta.dtype), "BF16") << tensor;
    }

    options.checkpoint.url.clear();
    options.micro_batch = 1;
    options.parallel = {.shard = 2, .zero = 3};
    const Ran divided = RunRanks(options, 2);
    options.parallel = {};
    const Ran copies = RunRanks(options, 2);
    options.optimizer.storage.seed = 17;
    const Ran other = RunRanks(options, 2);
    ASSERT_TRUE(divided.outcome && copies.outcome && other.outcome);
    const auto distance = [&](const Ran& a, const Ran& b) {
      double most = 0;
      for (const auto& [step, loss] : a.losses) most = std::max(most, std::abs(b.losses.at(step) - loss) / loss);
      return most;
    };
    // Each rank rounds all state, or its own part of it. The sums of gradients differ in the last bits.
    EXPECT_LT(distance(divided, copies), 0.05 * distance(other, copies));
    EXPECT_LT(distance(copies, whole), 0.05 * distance(other, copies));
  }
}

TEST_F(TrainTest, StateOfAnotherPrecisionIsRefusedByName) {
  Options options = Tiny("other-moments");
  options.steps = 4;
  options.checkpoint.url = CheckpointUrl("other-moments");
  ASSERT_TRUE(Run(options).outcome);
  options.optimizer.storage.bf16_moments = true;
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_EQ(ran.outcome.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("keep train.optimizer.moments"));

  // A run may lose its master copy, but cannot get one.
  options = Tiny("without-master");
  options.precision = at::kBFloat16;
  options.checkpoint.url = CheckpointUrl("without-master");
  options.steps_this_run = 2;
  ASSERT_TRUE(Run(options).outcome);
  options.optimizer.storage.rounds_weights = true;
  const Ran rounding = Run(options);
  ASSERT_TRUE(rounding.outcome) << rounding.outcome.error().ToString();
  EXPECT_EQ(rounding.plan.resumed_from, 2u);
  options.optimizer.storage.rounds_weights = false;
  const Ran back = Run(options);
  ASSERT_FALSE(back.outcome);
  EXPECT_THAT(back.outcome.error().ToString(), HasSubstr("other options of train.optimizer"));
}

}  // namespace
}  // namespace millrace::train
