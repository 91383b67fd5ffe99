// Whole runs that learn which of two answers is better.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "millrace/base/hash/random.h"
#include "millrace/train/testing/adapter_runs.h"

namespace millrace::train {
namespace {

using ::testing::HasSubstr;

class DpoTest : public AdapterTest {
 protected:
  static void SetUpTestSuite() {
    AdapterTest::SetUpTestSuite();
    const std::string_view words[] = {"mill", "wheel", "stone", "grain", "flour", "bread"};
    Random random(3);
    std::string lines;
    const auto text = [&](std::uint64_t count) {
      std::string words_of;
      for (std::uint64_t i = 0; i < count; ++i) words_of += " " + std::string(words[random.Below(6)]);
      return words_of;
    };
    // The better answer turns water; lengths differ, and some answers are cut.
    for (int i = 0; i < 200; ++i) {
      lines += DumpJson({{"prompt", "the" + text(2)},
                         {"chosen", " turns water" + text(random.Below(4))},
                         {"rejected", text(1 + random.Below(9))}}) +
               "\n";
    }
    // Not a name that the sources of Tiny() match.
    ASSERT_TRUE(WriteFileAtomic(folder_->path() / "pairs.json", AsBytes(lines)));
  }

  Options Comparing(const std::string& base, std::string_view run) const {
    Options options = Adapting(base, run);
    options.data.objective = data::Objective::kDpo;
    options.data.sources = {{.url = (folder_->path() / "pairs.json").native(), .format = "jsonl"}};
    options.lora->dropout = 0;
    options.dpo = {.beta = 0.5};
    return options;
  }
  static void ExpectSame(const Ran& ran, const Ran& one, std::string_view what) {
    ASSERT_TRUE(ran.outcome) << what << ": " << ran.outcome.error().ToString();
    for (const auto& [step, loss] : ran.losses) {
      EXPECT_NEAR(loss, one.losses.at(step), 1e-5 * loss) << what << " " << step;
      EXPECT_NEAR(ran.norms.at(step), one.norms.at(step), 1e-4 * one.norms.at(step)) << what << " " << step;
    }
  }
};

TEST_F(DpoTest, LearnsWhichAnswerIsBetter) {
  Options options = Comparing(Base("learnt-base", 1), "learnt");
  options.steps = 30;
  options.data.split.held_out = 0.2;
  options.eval.every_steps = 15;
  options.eval.metrics.emplace_back("accuracy");
  std::map<std::uint64_t, StepReport> reports;
  on_step_ = [&](const StepReport& report) { reports[report.step] = report; };
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  // A new adapter changes nothing: the first loss is that of a margin of 0.
  EXPECT_NEAR(ran.losses.at(1), std::log(2.0), 1e-6);
  EXPECT_EQ(reports.at(1).preferences.at("rewards/accuracies"), 0);
  EXPECT_LT(ran.losses.at(30), 0.5);
  EXPECT_GT(reports.at(30).preferences.at("rewards/margins"), 0.5);
  const Json step = reports.at(30).ToJson();
  for (const char* key : {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
                          "logps/rejected"}) {
    EXPECT_TRUE(step.contains(key)) << key;
  }
  const EvalReport& eval = ran.evals.at(30);
  EXPECT_GT(eval.preferences.at("rewards/accuracies"), 0.9) << eval.ToText();
  EXPECT_LT(eval.loss, ran.evals.at(15).loss);
  EXPECT_THAT(eval.ToText(), HasSubstr("margin"));
  EXPECT_FALSE(eval.Metrics().contains("perplexity"));
  EXPECT_EQ(reports.at(30).evaluated.at("rewards/margins"), eval.preferences.at("rewards/margins"));
}

TEST_F(DpoTest, IsTheSameOnAnyRanks) {
  const std::string base = Base("ranks-base", 1);
  Options options = Comparing(base, "ranks");
  options.checkpoint.url.clear();
  options.data.split.held_out = 0.2;
  options.eval.every_steps = 12;
  options.steps = 6;
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  struct Cut {
    int ranks, micro_batch;
    engine::ParallelOptions parallel;
  };
  for (const Cut& cut :
       {Cut{1, 8, {}}, Cut{1, 1, {.recompute = engine::Recompute::kFull}},
        Cut{2, 2, {.data = 2, .shard = 2, .zero = 3}}, Cut{2, 2, {.tensor = 2, .sequence = true}},
        Cut{2, 2, {.pipeline = 2}},
        Cut{4,
            2,
            {.data = 2, .shard = 2, .pipeline = 2, .schedule = engine::PipelineSchedule::kZeroBubble, .zero = 2}}}) {
    Options other = options;
    other.micro_batch = cut.micro_batch;
    other.parallel = cut.parallel;
    const Ran ran = RunRanks(other, cut.ranks);
    ExpectSame(ran, one, fmt::format("{} ranks, {} rows", cut.ranks, cut.micro_batch));
    const EvalReport &got = ran.evals.at(6), &want = one.evals.at(6);
    for (const auto& [name, value] : want.preferences) {
      EXPECT_NEAR(got.preferences.at(name), value, 1e-5 * (1 + std::abs(value))) << name;
    }
  }
}

/// Each step has all pairs, however many share a row.
TEST_F(DpoTest, PairsThatShareRowsLearnTheSame) {
  constexpr int kPairs = 24;
  std::string lines;
  Random random(11);
  for (int i = 0; i < kPairs; ++i) {
    const auto words = [&](std::uint64_t count) {
      std::string text;
      for (std::uint64_t w = 0; w < count; ++w) text += random.Below(2) == 0 ? " mill" : " a";
      return text;
    };
    lines +=
        DumpJson(
            {{"prompt", "the"}, {"chosen", words(1 + random.Below(5))}, {"rejected", words(1 + random.Below(3))}}) +
        "\n";
  }
  ASSERT_TRUE(WriteFileAtomic(folder_->path() / "few.json", AsBytes(lines)));
  Options options = Comparing(Base("packed-base", 1), "packed");
  options.checkpoint.url.clear();
  options.data.sources = {{.url = (folder_->path() / "few.json").native(), .format = "jsonl"}};
  options.data.sequence_length = 64;  // twice the model's positions, which an answer with its prompt has
  options.eval.sources = options.data.sources;
  options.eval.every_steps = 6;
  options.steps = 6;
  options.global_batch = kPairs;
  std::map<std::uint64_t, StepReport> reports;
  on_step_ = [&](const StepReport& report) { reports[report.step] = report; };
  const Ran alone = Run(options);
  ASSERT_TRUE(alone.outcome) << alone.outcome.error().ToString();
  const auto want = reports;

  options.data.best_fit = true;
  options.micro_batch = options.global_batch = 1;
  options.steps = 1;
  const Ran first = Run(options);
  ASSERT_TRUE(first.outcome) << first.outcome.error().ToString();
  const auto rows = static_cast<int>(first.plan.samples_per_epoch);
  EXPECT_LT(rows, kPairs / 2);
  options.steps = 6;
  options.global_batch = rows;
  for (const auto& [ranks, parallel] : std::vector<std::pair<int, engine::ParallelOptions>>{
           {1, {}}, {2, {.tensor = 2, .sequence = true}}, {2, {.pipeline = 2}}}) {
    options.parallel = parallel;
    reports.clear();
    const Ran packed = RunRanks(options, ranks);
    ExpectSame(packed, alone, fmt::format("{} rows on {} ranks", rows, ranks));
    for (const auto& [name, value] : alone.evals.at(6).preferences) {
      EXPECT_NEAR(packed.evals.at(6).preferences.at(name), value, 1e-5 * (1 + std::abs(value))) << name;
    }
    EXPECT_NEAR(packed.evals.at(6).loss, alone.evals.at(6).loss, 1e-5);
    for (const auto& [name, value] : want.at(5).preferences) {
      EXPECT_NEAR(reports.at(5).preferences.at(name), value, 1e-5 * (1 + std::abs(value))) << name;
    }
  }
}

TEST_F(DpoTest, AStoppedRunGoesOnBitForBit) {
  const std::string base = Base("resumed-base", 1);
  Options whole = Comparing(base, "whole"), parts = Comparing(base, "parts");
  whole.lora->dropout = parts.lora->dropout = 0.1;
  whole.dpo.loss = parts.dpo.loss = engine::DpoOptions::Loss::kIpo;
  const Ran all = Run(whole);
  ASSERT_TRUE(all.outcome) << all.outcome.error().ToString();
  ASSERT_TRUE(Run(parts, 5).outcome);
  const Ran rest = Run(parts);
  ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
  EXPECT_EQ(rest.losses.begin()->first, 7);
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, all.losses.at(step)) << step;
}

TEST_F(DpoTest, NeedsAnAdapterAndADecoder) {
  Options options = Comparing(Base("refused-base", 1), "refused");
  options.lora.reset();
  const Ran ran = Run(options);
  ASSERT_FALSE(ran.outcome);
  EXPECT_THAT(ran.outcome.error().ToString(), HasSubstr("train.objective dpo needs lora"));
}

}  // namespace
}  // namespace millrace::train
