// What a job file says reaches the options of the training run.
#include "apps/millrace-train/job_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/jobs/testing/random_spec.h"

namespace millrace {
namespace {

train::Options OptionsOfJob(const std::vector<std::string>& overrides) {
  constexpr std::string_view kJob = R"(name: job
data: {sources: [{url: "s3://corpus/wiki/"}], tokenizer: "s3://models/tokenizer.model"}
train: {steps: 100}
)";
  const auto spec = jobs::Spec::Parse(kJob, "job.yaml", overrides);
  EXPECT_TRUE(spec) << spec.error().ToString();
  auto options = OptionsOf(spec.value());
  EXPECT_TRUE(options) << options.error().ToString();
  return *std::move(options);
}

TEST(JobOptions, SayWhatIsWatched) {
  const train::Options plain = OptionsOfJob({});
  EXPECT_FALSE(plain.profile);
  EXPECT_EQ(plain.reports.histograms_every, 0u);
  EXPECT_TRUE(plain.check_network);
  const train::Options watched =
      OptionsOfJob({"train.profile.steps=[10, 12]", "log.url=s3://runs/a", "log.tensorboard=s3://runs/a/tb",
                    "log.histograms.every_steps=50", "run.health_checks=[clock]"});
  ASSERT_TRUE(watched.profile);
  EXPECT_EQ(watched.profile->first_step, 10u);
  EXPECT_EQ(watched.profile->last_step, 12u);
  EXPECT_EQ(watched.profile->url, "s3://runs/a");
  EXPECT_EQ(watched.reports.histograms_every, 50u);
  EXPECT_FALSE(watched.check_network);
}

TEST(JobOptions, SayWhoIsToldOfARun) {
  const train::Options plain = OptionsOfJob({});
  EXPECT_FALSE(plain.tracking.any());
  EXPECT_EQ(plain.callbacks, "");
  const train::Options told = OptionsOfJob(
      {"log={wandb: {project: p, tags: [a]}, mlflow: {url: \"https://mlflow.example\"}, callbacks: /hooks.py, python: "
       "/venv/bin/python}"});
  ASSERT_TRUE(told.tracking.wandb && told.tracking.mlflow);
  EXPECT_EQ(told.tracking.wandb->project, "p");
  EXPECT_THAT(told.tracking.wandb->tags, testing::ElementsAre("a"));
  EXPECT_EQ(told.tracking.mlflow->url, "https://mlflow.example");
  EXPECT_EQ(told.tracking.python, "/venv/bin/python");
  EXPECT_EQ(told.callbacks, "/hooks.py");
}

TEST(JobOptions, AreThoseOfTheJob) {
  Random random(5);
  for (int i = 0; i < 30; ++i) {
    const jobs::Spec spec = jobs::random_spec::RandomSpec(random);
    const auto options = OptionsOf(spec);
    ASSERT_TRUE(options) << options.error().ToString();
    train::TrainingOptions training = spec.train;
    training.optimizer.storage.seed = training.seed;
    if (training.profile) {
      training.profile->url = spec.log.url;
      training.profile->job = spec.name;
    }
    EXPECT_TRUE(static_cast<const train::TrainingOptions&>(*options) == training) << spec.Render();
    EXPECT_TRUE(options->checkpoint == spec.checkpoint) << spec.Render();
    EXPECT_TRUE(options->eval == spec.eval) << spec.Render();
    EXPECT_TRUE(options->reports == spec.log) << spec.Render();
    EXPECT_TRUE(options->data == spec.data.dataset) << spec.Render();
    EXPECT_EQ(options->parallel, spec.train.parallel.options) << spec.Render();
  }
}

TEST(JobOptions, HaveTheModelAndItsNumbers) {
  const train::Options options = OptionsOfJob({"train.precision=bf16", "model.config.hidden_size=32"});
  EXPECT_EQ(options.name, "job");
  EXPECT_EQ(options.model_config.at("hidden_size"), 32);
  EXPECT_EQ(options.tokenizer_url, "s3://models/tokenizer.model");
  EXPECT_EQ(options.precision, at::kBFloat16);
  EXPECT_EQ(options.fp8, engine::ops::Fp8Scaling::kNone);
  EXPECT_EQ(OptionsOfJob({}).precision, at::kFloat);
  const train::Options fp8 = OptionsOfJob({"train.precision=fp8"});
  EXPECT_EQ(fp8.precision, at::kBFloat16);
  EXPECT_EQ(fp8.fp8, engine::ops::Fp8Scaling::kCurrent);
  EXPECT_EQ(OptionsOfJob({"train.precision=fp8", "train.fp8_scaling=block"}).fp8, engine::ops::Fp8Scaling::kBlock);
}

TEST(JobOptions, HaveTheLayout) {
  const train::Options given = OptionsOfJob(
      {"run={processes_per_node: 4, machine: p5.48xlarge}", "train.parallel={tensor: 2, zero: 2, placement: spread}"});
  EXPECT_EQ(given.parallel, (engine::ParallelOptions{.tensor = 2, .zero = 2, .placement = "spread"}));
  EXPECT_FALSE(given.auto_memory_weight);
  EXPECT_EQ(given.machine, "p5.48xlarge");
  EXPECT_EQ(given.setup.ranks_per_machine, 4);
  EXPECT_EQ(given.setup.moments, 2);
  EXPECT_EQ(given.setup.snapshots, 0);
  const train::Options chosen =
      OptionsOfJob({"train.parallel={layout: auto, memory_weight: 0.25, reduce: bf16, placement: PDT}",
                    "train.optimizer.name=sgd", "checkpoint.url=s3://runs/x"});
  EXPECT_EQ(chosen.auto_memory_weight, 0.25);
  EXPECT_EQ(chosen.parallel, (engine::ParallelOptions{.reduce_in_bf16 = true, .placement = "PDT"}));
  EXPECT_EQ(chosen.setup.moments, 1);
  EXPECT_EQ(chosen.setup.snapshots, 1);
}

TEST(JobOptions, HaveTheObjective) {
  const std::string bert = "model.from=s3://models/bert";
  const train::Options mlm = OptionsOfJob({bert, "train.objective=mlm", "data.mlm={next_sentence: false}"});
  EXPECT_EQ(mlm.model_url, "s3://models/bert");
  EXPECT_EQ(mlm.data.objective, data::Objective::kMlm);
  EXPECT_FALSE(mlm.data.mlm.next_sentence);
  const train::Options classes =
      OptionsOfJob({bert, "train.objective=classification", "data.classification.classes=[bad, fair, good]"});
  EXPECT_EQ(classes.data.objective, data::Objective::kClassification);
  EXPECT_EQ(classes.classes, 3);
}

}  // namespace
}  // namespace millrace
