// What a job file says reaches the options of the training run.
#include "apps/millrace-train/job_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_EQ(plain.histograms_every, 0u);
  EXPECT_TRUE(plain.check_network);
  const train::Options watched =
      OptionsOfJob({"train.profile.steps=[10, 12]", "log.url=s3://runs/a", "log.tensorboard=s3://runs/a/tb",
                    "log.histograms.every_steps=50", "run.health_checks=[clock]"});
  ASSERT_TRUE(watched.profile);
  EXPECT_EQ(watched.profile->first_step, 10u);
  EXPECT_EQ(watched.profile->last_step, 12u);
  EXPECT_EQ(watched.profile->url, "s3://runs/a");
  EXPECT_EQ(watched.histograms_every, 50u);
  EXPECT_FALSE(watched.check_network);
}

TEST(JobOptions, HaveTheKeysOfTrain) {
  const train::Options options = OptionsOfJob(
      {"train={epochs: 1.5, steps_this_run: 7, global_batch: 24, micro_batch: 3, precision: bf16, seed: 9, freeze: "
       "[\"*wte*\"], loss: {label_smoothing: 0.1, z_loss: 0.01}, spikes: {action: roll_back, sigma: 3, window: 9}}",
       "data.sequence_length=64", "model.config.hidden_size=32"});
  EXPECT_EQ(options.name, "job");
  EXPECT_EQ(options.model_config.at("hidden_size"), 32);
  EXPECT_THAT(options.data.sources, testing::ElementsAre(data::DataSource{.url = "s3://corpus/wiki/"}));
  EXPECT_EQ(options.data.sequence_length, 64);
  EXPECT_EQ(options.tokenizer_url, "s3://models/tokenizer.model");
  EXPECT_EQ(options.epochs, 1.5);
  EXPECT_FALSE(options.steps);
  EXPECT_EQ(options.steps_this_run, 7u);
  EXPECT_EQ(options.global_batch, 24);
  EXPECT_EQ(options.micro_batch, 3);
  EXPECT_EQ(options.precision, at::kBFloat16);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_THAT(options.freeze, testing::ElementsAre("*wte*"));
  EXPECT_EQ(options.loss.label_smoothing, 0.1);
  EXPECT_EQ(options.loss.z_loss, 0.01);
  EXPECT_EQ(options.spikes.action, train::SpikeOptions::Action::kRollBack);
  EXPECT_EQ(options.spikes.sigma, 3);
  EXPECT_EQ(options.spikes.window, 9u);
  EXPECT_FALSE(options.auto_memory_weight);

  const train::Options other = OptionsOfJob({"train.spikes.action=skip_step", "train.optimizer.clip_norm=0.5"});
  EXPECT_EQ(other.steps, 100u);
  EXPECT_FALSE(other.epochs);
  EXPECT_EQ(other.precision, at::kFloat);
  EXPECT_EQ(other.clip_norm, 0.5);
  EXPECT_EQ(other.spikes.action, train::SpikeOptions::Action::kSkipStep);
  EXPECT_EQ(OptionsOfJob({}).spikes.action, train::SpikeOptions::Action::kNone);

  const train::Options fp8 = OptionsOfJob({"train.precision=fp8"});
  EXPECT_EQ(fp8.precision, at::kBFloat16);
  EXPECT_EQ(fp8.fp8, engine::ops::Fp8Scaling::kCurrent);
  EXPECT_EQ(options.fp8, engine::ops::Fp8Scaling::kNone);
  EXPECT_EQ(OptionsOfJob({"train.precision=fp8", "train.fp8_scaling=delayed"}).fp8, engine::ops::Fp8Scaling::kDelayed);
  EXPECT_EQ(OptionsOfJob({"train.precision=fp8", "train.fp8_scaling=block"}).fp8, engine::ops::Fp8Scaling::kBlock);
}

TEST(JobOptions, HaveTheOptimizer) {
  const engine::OptimizerOptions adamw =
      OptionsOfJob({"train.optimizer={betas: [0.8, 0.7], eps: 1.0e-5, weight_decay: 0.3, no_decay: [\"*bias\"]}"})
          .optimizer;
  const auto& a = std::get<engine::AdamwOptions>(adamw.method);
  EXPECT_EQ((std::array{a.beta1, a.beta2, a.eps, a.weight_decay}), (std::array{0.8, 0.7, 1e-5, 0.3}));
  EXPECT_THAT(adamw.rules.no_decay, testing::ElementsAre("*bias"));
  EXPECT_EQ(adamw.rules.loraplus_lr_ratio, 1);
  EXPECT_EQ(OptionsOfJob({"model={from: /base}", "lora.loraplus_lr_ratio=16"}).optimizer.rules.loraplus_lr_ratio, 16);
  const engine::OptimizerOptions lamb =
      OptionsOfJob({"train.optimizer={name: lamb, betas: [0.8, 0.7], eps: 1.0e-5, weight_decay: 0.3}"}).optimizer;
  const auto& l = std::get<engine::LambOptions>(lamb.method);
  EXPECT_EQ((std::array{l.beta1, l.beta2, l.eps, l.weight_decay}), (std::array{0.8, 0.7, 1e-5, 0.3}));
  const engine::OptimizerOptions sgd =
      OptionsOfJob({"train.optimizer={name: sgd, momentum: 0.8, nesterov: true, weight_decay: 0.3}"}).optimizer;
  const auto& s = std::get<engine::SgdOptions>(sgd.method);
  EXPECT_EQ(s.momentum, 0.8);
  EXPECT_TRUE(s.nesterov);
  EXPECT_EQ(s.weight_decay, 0.3);
}

TEST(JobOptions, HavePreferencesAndNoise) {
  const train::Options options = OptionsOfJob({"model={from: /base}", "lora.r=4", "train.objective=dpo",
                                               "train.dpo={beta: 0.3, label_smoothing: 0.1}", "train.neftune_alpha=5"});
  EXPECT_EQ(options.data.objective, data::Objective::kDpo);
  EXPECT_EQ(options.dpo.loss, engine::DpoOptions::Loss::kSigmoid);
  EXPECT_EQ(options.dpo.beta, 0.3);
  EXPECT_EQ(options.dpo.label_smoothing, 0.1);
  EXPECT_EQ(options.neftune_alpha, 5);
  const train::Options ipo =
      OptionsOfJob({"model={from: /base}", "lora.r=4", "train.objective=dpo", "train.dpo.loss_type=ipo"});
  EXPECT_EQ(ipo.dpo.loss, engine::DpoOptions::Loss::kIpo);
  EXPECT_EQ(ipo.dpo.beta, 0.1);
}

TEST(JobOptions, HaveTheSchedule) {
  using engine::Schedule;
  const auto schedule_of = [](const std::string& keys) {
    return OptionsOfJob({"train.optimizer.lr=0.01", "train.schedule={" + keys + "}"}).schedule;
  };
  const Schedule cosine = schedule_of("warmup_steps: 5, min_lr: 0.001");
  EXPECT_EQ(cosine.shape, Schedule::Shape::kCosine);
  EXPECT_EQ(cosine.lr, 0.01);
  EXPECT_EQ(cosine.min_lr, 0.001);
  EXPECT_EQ(cosine.warmup_steps, 5u);
  EXPECT_EQ(schedule_of("name: constant").shape, Schedule::Shape::kConstant);
  EXPECT_EQ(schedule_of("name: linear").shape, Schedule::Shape::kLinear);
  EXPECT_EQ(schedule_of("name: polynomial, power: 2").shape, Schedule::Shape::kPolynomial);
  EXPECT_EQ(schedule_of("name: polynomial, power: 2").power, 2);
  const Schedule wsd = schedule_of("name: wsd, stable_share: 0.7, decay: linear");
  EXPECT_EQ(wsd.shape, Schedule::Shape::kWarmupStableDecay);
  EXPECT_EQ(wsd.stable_share, 0.7);
  EXPECT_EQ(wsd.decay, Schedule::Decay::kLinear);
  EXPECT_EQ(schedule_of("name: wsd").decay, Schedule::Decay::kOneMinusSqrt);
  EXPECT_EQ(schedule_of("name: inverse_sqrt, timescale: 6").shape, Schedule::Shape::kInverseSqrt);
  EXPECT_EQ(schedule_of("name: inverse_sqrt, timescale: 6").timescale, 6u);
  EXPECT_EQ(OptionsOfJob({"train.schedule.warmup_proportion=0.2"}).warmup_proportion, 0.2);
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

TEST(JobOptions, HaveTheEvaluation) {
  const train::Options own =
      OptionsOfJob({"eval={every_steps: 5, samples: 12, metrics: [loss, accuracy], sources: [{url: "
                    "\"s3://corpus/test/\", format: jsonl, weight: 2}]}"});
  EXPECT_EQ(own.eval_every, 5u);
  EXPECT_EQ(own.eval_samples, 12u);
  EXPECT_THAT(own.eval_sources,
              testing::ElementsAre(data::DataSource{.url = "s3://corpus/test/", .weight = 2, .format = "jsonl"}));
  EXPECT_FALSE(own.eval_perplexity);
  EXPECT_TRUE(own.eval_accuracy);
  const train::Options held_out = OptionsOfJob({"eval.every_steps=5", "data.split.held_out=0.25"});
  EXPECT_TRUE(held_out.eval_sources.empty());
  EXPECT_EQ(held_out.data.split.held_out, 0.25);
  EXPECT_TRUE(held_out.eval_perplexity);
  EXPECT_FALSE(held_out.eval_accuracy);
  EXPECT_EQ(OptionsOfJob({}).eval_every, 0u);
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
