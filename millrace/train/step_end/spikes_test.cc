#include "millrace/train/step_end/spikes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using Action = SpikeOptions::Action;

TEST(SpikeDetector, TellsJumpsFromNoise) {
  SpikeDetector detector({.action = Action::kSkipStep, .sigma = 6, .window = 32});
  Random random(3);
  const auto noise = [&] { return static_cast<double>(random.Below(1000)) / 1000; };
  for (int i = 0; i < 500; ++i) EXPECT_FALSE(detector.IsSpike(3 + noise(), 1 + noise())) << i;
  EXPECT_TRUE(detector.IsSpike(9, 1.5)) << "the loss";
  EXPECT_TRUE(detector.IsSpike(3.5, 9)) << "the gradient";
  EXPECT_TRUE(detector.IsSpike(9, 1.5)) << "a spike is not remembered";
  EXPECT_FALSE(detector.IsSpike(0, 0)) << "a fall is none";
  SpikeDetector off({});
  for (int i = 0; i < 500; ++i) EXPECT_FALSE(off.IsSpike(i == 400 ? 100 : 1, 1));
}

TEST(SpikeDetector, WaitsUntilHalfOfTheWindowIsFull) {
  SpikeDetector detector({.action = Action::kSkipStep, .window = 32});
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(detector.IsSpike(i % 2, 1));
  EXPECT_FALSE(detector.IsSpike(100, 1)) << "15 steps say too little";
}

TEST(SpikeDetector, GoesOnFromItsJson) {
  const SpikeOptions options{.action = Action::kSkipStep, .sigma = 2, .window = 8};
  SpikeDetector one(options), other(options);
  Random random(4);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(other.Restore(ParseJson(DumpJson(one.ToJson()), "state").value()));
    const double loss = static_cast<double>(random.Below(100)), norm = static_cast<double>(random.Below(100));
    ASSERT_EQ(one.IsSpike(loss, norm), other.IsSpike(loss, norm)) << i;
  }
  EXPECT_FALSE(other.Restore({{"losses", {1, "x"}}, {"grad_norms", Json::array()}}));
  EXPECT_FALSE(other.Restore({}));
}

class SpikesTest : public TrainTest {
 protected:
  /// A run whose samples change their nature for a while: one step of noise among ordered texts.
  Options Spiky(std::string_view run, Action action) const {
    Options options = Tiny(run);
    std::string lines = Corpus(60);
    Random random(8);
    for (int i = 0; i < 9; ++i) {
      std::string text;
      for (int j = 0; j < 60; ++j) text += static_cast<char>('!' + random.Below(90));
      lines += DumpJson({{"text", text}}) + "\n";
    }
    lines += Corpus(200);
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "spiky.json", AsBytes(lines)));
    options.data.sources = {{.url = (folder_->path() / "spiky.json").native(), .format = "jsonl"}};
    options.data.shuffle_window = 0;
    options.steps = 30;
    options.checkpoint.every_steps = 5;
    options.spikes = {.action = action, .sigma = 4, .window = 8};
    return options;
  }
};

TEST_F(SpikesTest, StepsAreSkippedAndResumeBitForBit) {
  Options options = Spiky("skip", Action::kSkipStep);
  const Ran whole = Run(options);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  EXPECT_FALSE(whole.spikes.empty());
  const Ran kept = Run(Spiky("keep", Action::kNone));
  ASSERT_TRUE(kept.outcome) << kept.outcome.error().ToString();
  const std::uint64_t first = whole.spikes.begin()->first;
  EXPECT_EQ(kept.losses.at(first), whole.losses.at(first));
  EXPECT_NE(kept.losses.at(first + 1), whole.losses.at(first + 1)) << "the other run learnt from the spike";

  options.checkpoint.url = CheckpointUrl("skip");
  ASSERT_TRUE(Run(options, first).outcome);
  const Ran rest = Run(options);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;

  Options sharded = Spiky("sharded", Action::kSkipStep);
  for (const int zero : {1, 2, 3}) {
    sharded.parallel = {.zero = zero};
    const Ran two = RunRanks(sharded, 2);
    ASSERT_TRUE(two.outcome) << two.outcome.error().ToString();
    for (const auto& [step, loss] : two.losses) EXPECT_NEAR(loss, whole.losses.at(step), 1e-5 * loss) << zero << step;
  }
}

TEST_F(SpikesTest, ARunGoesBackAndOnWithOtherSamples) {
  Options options = Spiky("back", Action::kRollBack);
  options.checkpoint.url = CheckpointUrl("back");
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_TRUE(ran.outcome->complete());
  ASSERT_FALSE(ran.spikes.empty());
  for (const auto& [step, back_to] : ran.spikes) {
    ASSERT_TRUE(back_to);
    EXPECT_LT(*back_to, step);
    EXPECT_EQ(*back_to % 5, 0u);
  }
  EXPECT_LT(ran.losses.at(30), 3);
}

}  // namespace
}  // namespace millrace::train
