// Evaluations count every sequence once, however many ranks there are and whichever way they divide the work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/train/testing/bert_runs.h"
#include "tests/train/nvidia_shards.h"

namespace millrace::train {
namespace {

using data::Objective;
using engine::ParallelOptions;
using engine::PipelineSchedule;

struct EvaluatedLayout {
  int ranks;
  ParallelOptions parallel;
  double tolerance = 1e-12;  ///< of the loss: ranks add up doubles, in another order
};

/// One to four data ranks, and both kinds of ranks that make collective calls within a pass: stages and ZeRO-3.
/// Tensor ranks also add up products in another order.
const EvaluatedLayout kEvaluatedLayouts[] = {
    {2, {}},
    {3, {}},
    {4, {}},
    {6, {.pipeline = 2}},
    {4, {.pipeline = 2, .schedule = PipelineSchedule::kInterleaved, .virtual_stages = 2}},
    {3, {.zero = 3}},
    {6, {.shard = 3, .pipeline = 2, .zero = 3}},
    {6, {.tensor = 2, .sequence = true, .zero = 1}, 2e-6}};

class EvaluationRanks : public BertTest {
 protected:
  /// Returns a run whose only step changes no weight of a model that has learnt something.
  Options Evaluating(Objective objective, bool pairs) {
    const auto options_of = [&](std::string_view run) {
      Options options = objective == Objective::kCausalLm ? Tiny(run) : Bert(run, objective);
      options.data.mlm.next_sentence = pairs;
      options.model_config["num_hidden_layers"] = 4;
      options.global_batch = 12;
      options.micro_batch = 1;
      options.data.split.held_out = 0.1;
      return options;
    };
    const std::string base = fmt::format("base {} {}", data::ObjectiveName(objective), pairs);
    Options learning = options_of(base);
    learning.steps = 15;
    learning.checkpoint.every_steps = 15;
    learning.checkpoint.url = CheckpointUrl(base);
    EXPECT_TRUE(Run(learning).outcome);
    Options options = options_of("evaluating");
    options.model_url = learning.checkpoint.url;
    options.schedule = {.shape = engine::Schedule::Shape::kConstant, .lr = 1e-30};
    options.steps = 1;
    options.eval.every_steps = 1;
    options.eval.metrics.emplace_back("accuracy");
    return options;
  }

  void ExpectTheSameOnAnyRanks(Objective objective, bool pairs = false) {
    Options options = Evaluating(objective, pairs);
    for (const std::uint64_t samples : {2, 7}) {  // neither divides among 3 or 4 ranks
      options.eval.samples = samples;
      options.parallel = {};
      const Ran one = Run(options);
      ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
      const EvalReport& want = one.evals.at(1);
      EXPECT_EQ(want.samples, samples);
      if (samples == 7) {
        EXPECT_GT(want.accuracy, 0) << "else equal accuracies say nothing";
      }
      for (const EvaluatedLayout& layout : kEvaluatedLayouts) {
        options.parallel = layout.parallel;
        SCOPED_TRACE(fmt::format("{} samples on {} ranks, {}", samples, layout.ranks, ToText(layout.parallel)));
        const Ran ran = RunRanks(options, layout.ranks);
        ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
        const EvalReport& got = ran.evals.at(1);
        EXPECT_EQ(got.samples, want.samples);
        EXPECT_EQ(got.labels, want.labels);
        EXPECT_NEAR(got.loss, want.loss, layout.tolerance * want.loss);
        EXPECT_EQ(got.accuracy, want.accuracy);
        EXPECT_EQ(got.row_accuracy, want.row_accuracy);
      }
    }
  }

  static std::string ToText(const ParallelOptions& parallel) {
    return fmt::format("tensor {} pipeline {} {} shard {} zero {}", parallel.tensor, parallel.pipeline,
                       engine::PipelineScheduleName(parallel.schedule), parallel.shard, parallel.zero);
  }
};

TEST_F(EvaluationRanks, CausalLm) { ExpectTheSameOnAnyRanks(Objective::kCausalLm); }
TEST_F(EvaluationRanks, Classification) { ExpectTheSameOnAnyRanks(Objective::kClassification); }
TEST_F(EvaluationRanks, MaskedLm) { ExpectTheSameOnAnyRanks(Objective::kMlm); }
TEST_F(EvaluationRanks, MaskedLmWithPairs) { ExpectTheSameOnAnyRanks(Objective::kMlm, /*pairs=*/true); }

TEST_F(EvaluationRanks, TakeWholeSourcesWhateverTheirNumber) {
  Options options = Tiny("few records");
  ASSERT_TRUE(WriteFileAtomic(folder_->path() / "few.json", AsBytes(Corpus(3))));
  options.eval.sources = {{.url = (folder_->path() / "few.json").native(), .format = "jsonl"}};
  options.schedule = {.shape = engine::Schedule::Shape::kConstant, .lr = 1e-30};
  options.global_batch = 12;
  options.micro_batch = 1;
  options.steps = 1;
  options.eval.every_steps = 1;
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  const std::uint64_t samples = one.evals.at(1).samples;
  for (const int ranks : {2, 3, 4}) {
    const Ran ran = RunRanks(options, ranks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    EXPECT_EQ(ran.evals.at(1).samples, samples) << ranks;
    EXPECT_NEAR(ran.evals.at(1).loss, one.evals.at(1).loss, 1e-12 * one.evals.at(1).loss) << ranks;
  }
}

/// Of single samples, some passes have no token to predict.
TEST_F(EvaluationRanks, SamplesWithoutHiddenTokensChangeNothingElse) {
  const std::filesystem::path shard = folder_->path() / "samples.hdf5";
  ASSERT_TRUE(WriteFileAtomic(shard, AsBytes(NvidiaShardBytes({.samples = 96, .some_empty = true}))));
  for (const bool pairs : {true, false}) {
    Options options = Bert("samples", Objective::kMlm);
    options.data.sources = {{.url = shard.native()}};
    options.data.mlm.next_sentence = pairs;
    options.micro_batch = 8;
    const Ran whole = Run(options);
    ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
    options.micro_batch = 1;
    for (const EvaluatedLayout& layout :
         {EvaluatedLayout{1, {}}, EvaluatedLayout{4, {.pipeline = 2, .zero = 3}}, EvaluatedLayout{2, {.tensor = 2}}}) {
      options.parallel = layout.parallel;
      const Ran ran = RunRanks(options, layout.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      for (const auto& [step, loss] : ran.losses) EXPECT_NEAR(loss, whole.losses.at(step), 4e-6 * loss) << step;
    }
  }
}

}  // namespace
}  // namespace millrace::train
