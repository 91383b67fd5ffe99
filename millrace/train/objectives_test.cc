// Whole runs of a tiny BERT: its pre-training, and classes of texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/train/testing/bert_runs.h"

namespace millrace::train {
namespace {

using ObjectivesTest = BertTest;

TEST_F(ObjectivesTest, PreTrainingIsTheSameOnAnyRanks) {
  for (const bool next_sentence : {true, false}) {
    const std::string run = next_sentence ? "pairs" : "single";
    Options options = Bert(run, data::Objective::kMlm);
    options.data.mlm.next_sentence = next_sentence;
    const Ran one = Run(options);
    ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
    EXPECT_LT(one.losses.at(10), one.losses.at(1));
    // The loss is the mean over the tokens plus the mean over the rows: log 16 and, with pairs, log 2 at first.
    EXPECT_NEAR(one.losses.at(1), std::log(16.0) + (next_sentence ? std::log(2.0) : 0), 0.4);

    // However the batch is cut, and whichever way the ranks divide the work.
    struct Cut {
      int ranks, micro_batch;
      engine::ParallelOptions parallel;
    };
    for (const Cut& cut : {Cut{1, 1, {}}, Cut{1, 8, {}}, Cut{2, 2, {}}, Cut{2, 2, {.tensor = 2, .sequence = true}},
                           Cut{4, 1, {.pipeline = 2, .zero = 2}},
                           Cut{2, 2, {.pipeline = 2, .schedule = engine::PipelineSchedule::kSimple}}}) {
      Options other = options;
      other.micro_batch = cut.micro_batch;
      other.parallel = cut.parallel;
      const Ran ran = RunRanks(other, cut.ranks);
      ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
      for (const auto& [step, loss] : ran.losses) {
        EXPECT_NEAR(loss, one.losses.at(step), 2e-6 * loss) << cut.ranks << " " << cut.micro_batch << " " << step;
      }
    }

    options.checkpoint.url = CheckpointUrl(run);
    ASSERT_TRUE(Run(options, 5).outcome);
    const Ran rest = Run(options);
    ASSERT_TRUE(rest.outcome) << rest.outcome.error().ToString();
    for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, one.losses.at(step)) << step;
  }
}

TEST_F(ObjectivesTest, ClassesAreLearntFromAPreTrainedModel) {
  Options base = Bert("base", data::Objective::kMlm);
  base.checkpoint.url = CheckpointUrl("base");
  ASSERT_TRUE(Run(base).outcome);

  Options options = Bert("classes", data::Objective::kClassification);
  options.model_url = base.checkpoint.url;
  options.model_config = nullptr;
  options.steps = 60;
  options.data.split.held_out = 0.2;
  options.eval.every_steps = 30;
  options.eval.metrics.emplace_back("accuracy");
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  EXPECT_NEAR(one.losses.at(1), std::log(2.0), 0.3);
  EXPECT_GT(one.evals.at(60).accuracy, 0.95) << one.evals.at(60).ToText();
  EXPECT_THAT(one.evals.at(60).ToText(), testing::HasSubstr("accuracy"));

  options.parallel = {.tensor = 2};
  const Ran four = RunRanks(options, 4);
  ASSERT_TRUE(four.outcome) << four.outcome.error().ToString();
  EXPECT_EQ(four.evals.at(60).accuracy, one.evals.at(60).accuracy);
  EXPECT_NEAR(four.evals.at(60).loss, one.evals.at(60).loss, 1e-4 * one.evals.at(60).loss);
}

/// GPT-2 judges a row by its last token. However the ranks divide the work, the losses are the same.
TEST_F(ObjectivesTest, AGpt2LearnsClasses) {
  Options options = Bert("gpt2", data::Objective::kClassification);
  options.model_config = {{"model_type", "gpt2"}, {"n_embd", 32}, {"n_inner", 48},
                          {"n_layer", 2},         {"n_head", 4},  {"n_positions", 32}};
  options.steps = 60;
  options.data.split.held_out = 0.2;
  options.eval.every_steps = 60;
  options.eval.metrics.emplace_back("accuracy");
  const Ran one = Run(options);
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  EXPECT_NEAR(one.losses.at(1), std::log(2.0), 0.3);
  EXPECT_GT(one.evals.at(60).accuracy, 0.95) << one.evals.at(60).ToText();

  options.steps = 8;
  options.eval.every_steps = 0;
  const Ran some = Run(options);
  for (const engine::ParallelOptions& parallel :
       {engine::ParallelOptions{.tensor = 2, .sequence = true}, engine::ParallelOptions{.pipeline = 2, .zero = 1}}) {
    options.parallel = parallel;
    const Ran divided = RunRanks(options, 2);
    ASSERT_TRUE(divided.outcome) << divided.outcome.error().ToString();
    for (const auto& [step, loss] : divided.losses) EXPECT_NEAR(loss, some.losses.at(step), 1e-5 * loss) << step;
  }
}

TEST_F(ObjectivesTest, AModelMustFitWhatIsLearnt) {
  Options options = Bert("next token", data::Objective::kCausalLm);
  const Ran bert = Run(options);
  ASSERT_FALSE(bert.outcome);
  EXPECT_THAT(bert.outcome.error().ToString(),
              testing::HasSubstr("a bert model does not learn train.objective causal_lm"));
  options = Bert("masked llama", data::Objective::kMlm);
  options.model_config = Tiny("").model_config;
  const Ran llama = Run(options);
  ASSERT_FALSE(llama.outcome);
  EXPECT_THAT(llama.outcome.error().ToString(), testing::HasSubstr("a llama model does not learn train.objective mlm"));
  // A class that the model lacks.
  options = Bert("three", data::Objective::kClassification);
  options.classes = 1;
  const Ran classes = Run(options);
  ASSERT_FALSE(classes.outcome);
  EXPECT_THAT(classes.outcome.error().ToString(), testing::HasSubstr("label 1 is not one of 1"));
}

}  // namespace
}  // namespace millrace::train
