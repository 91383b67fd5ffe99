#include "millrace/jobs/spec/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/spec/foreign_words.h"
#include "millrace/jobs/spec/model_config.h"
#include "millrace/jobs/spec/spec_fields.h"
#include "millrace/jobs/testing/key_changer.h"
#include "millrace/jobs/testing/random_spec.h"
#include "millrace/jobs/testing/small_job.h"

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

TEST(Spec, FillsDefaults) {
  auto spec = Spec::Parse(kSmall, "job.yaml");
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->name, "small");
  ASSERT_EQ(spec->data.dataset.sources.size(), 1u);
  EXPECT_EQ(spec->data.dataset.sources[0], (data::DataSource{"s3://corpus/wiki/*.jsonl", 1}));
  EXPECT_EQ(spec->train.steps, 100u);
  EXPECT_FALSE(spec->train.epochs);
  EXPECT_EQ(spec->model, ModelSpec());
  EXPECT_EQ(spec->checkpoint, CheckpointSpec());
  EXPECT_EQ(spec->run, RunSpec());
}

TEST(Spec, ReadsTheInterfacesExample) {
  auto spec = Spec::Parse(R"(
name: llama-demo
model:
  family: llama
  config: {hidden_size: 256, num_layers: 4, num_heads: 8, intermediate_size: 688, vocab_size: 4096}
data:
  sources: [{url: "s3://corpus/zh_wiki/*.jsonl", weight: 2.5}, {url: "s3://corpus/en/"}]
  template: "{title}\n\t\t{text}\n\n"
  tokenizer: s3://models/tokenizer.model
  sequence_length: 2048
  mode: pad
  shuffle: {seed: 7, window: 1024}
train:
  epochs: 1.5
  global_batch: 256
  micro_batch: 2
  precision: bf16
  optimizer: {name: adamw, lr: 3.0e-4, betas: [0.8, 0.9], eps: 1.0e-9, weight_decay: 0.2, clip_norm: 2.0}
  schedule: {name: linear, warmup_steps: 2000, min_lr: 3.0e-5}
  parallel: {data: auto, tensor: 1, pipeline: 1, sequence: false, zero: 0, microbatches: 64, recompute: none}
  seed: 43
checkpoint: {url: "s3://runs/llama-demo", every_steps: 50, keep_last: 5, keep_every: 1000}
run: {launcher: local, nodes: 1, processes_per_node: 2, max_restarts: 4, hang_timeout: 90s}
log: {every_steps: 10, tensorboard: "s3://runs/llama-demo/tb", metric_definitions: []}
)",
                          "job.yaml");
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(ModelConfigOf(*spec)["num_key_value_heads"], 8) << "as many as num_heads when not given";
  EXPECT_EQ(spec->data.dataset.template_text, "{title}\n\t\t{text}\n\n");
  EXPECT_EQ(spec->data.dataset.sources[0].weight, 2.5);
  EXPECT_EQ(spec->data.dataset.shuffle_window, 1024u);
  EXPECT_EQ(spec->train.epochs, 1.5);
  EXPECT_EQ(std::get<engine::AdamwOptions>(spec->train.optimizer.method).beta2, 0.9);
  EXPECT_EQ(spec->train.schedule.min_lr, 3e-5);
  EXPECT_EQ(spec->run.hang_timeout, std::chrono::seconds(90));
  EXPECT_EQ(spec->ranks(), 2);
  EXPECT_EQ(spec->log.tensorboard, "s3://runs/llama-demo/tb");
}

TEST(Spec, AModelHasTheKeysOfItsFamily) {
  const auto spec = ParseSmall(
      {"model={family: qwen3, config: {hidden_size: 64, head_dim: 32, num_kv_heads: 2, tie_word_embeddings: true,"
       " rope_scaling: {rope_type: yarn, factor: 4.0}}}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  const Json config = ModelConfigOf(*spec);
  EXPECT_EQ(config["model_type"], "qwen3");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["head_dim"], 32);
  EXPECT_EQ(config["max_position_embeddings"], 256) << "data.sequence_length";
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["rope_scaling"], (Json{{"rope_type", "yarn"}, {"factor", 4.0}}));
}

TEST(Spec, SetOverridesTheFile) {
  auto spec = ParseSmall({"train.optimizer.lr=1e-4", "train.steps=7", "run.processes_per_node=4"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->train.schedule.lr, 1e-4);
  EXPECT_EQ(spec->train.steps, 7u);
  EXPECT_EQ(spec->run.processes_per_node, 4);
}

TEST(Spec, ReadsTheWordsOfTheModelParallelLibrary) {
  const auto spec =
      ParseSmall({"train.global_batch=48", "run.processes_per_node=4",
                  "train.parallel={microbatches: 12, partitions: 2, pipeline: interleaved, optimize: speed, "
                  "placement_strategy: spread, ddp: true, active_microbatches: 4, memory_weight: 0.2, "
                  "overlapping_allreduce: true}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->train.parallel.options, (engine::ParallelOptions{.pipeline = 2, .placement = "spread"}));
  EXPECT_EQ(spec->train.micro_batch, 2) << "48 / (12 × 2 data-parallel ranks)";
  EXPECT_EQ(spec->train.parallel.memory_weight, 0.2);
  EXPECT_THAT(spec->Render(), HasSubstr("schedule: 1f1b\n    pipeline: 2\n"));
  const auto simple = ParseSmall({"run.processes_per_node=2", "train.parallel={partitions: 2, pipeline: simple}"});
  ASSERT_TRUE(simple);
  EXPECT_EQ(simple->train.parallel.options.schedule, engine::PipelineSchedule::kSimple);
  const auto behind = ParseSmall({"train.parallel={overlapping_allreduce: false}"});
  ASSERT_TRUE(behind);
  EXPECT_FALSE(behind->train.parallel.options.overlap);
  EXPECT_THAT(behind->Render(), HasSubstr("overlap: false\n"));
  EXPECT_FALSE(ParseSmall({"run.processes_per_node=4", "train.parallel={partitions: 2, ddp: false}"}));
}

TEST(Spec, ALayoutMayBeLeftToThePlanner) {
  const auto word = ParseSmall({"train.parallel=auto", "run.processes_per_node=3"});
  ASSERT_TRUE(word) << word.error().ToString();
  const auto map = ParseSmall({"train.parallel={layout: auto, optimize: memory}", "run.processes_per_node=3"});
  ASSERT_TRUE(map) << map.error().ToString();
  EXPECT_TRUE(word->train.parallel.automatic && map->train.parallel.automatic);
  EXPECT_EQ(map->train.parallel.optimize, "memory");
}

TEST(Spec, LayoutAutoTakesNoneOfTheKeysThatItChooses) {
  for (const char* given :
       {"data: 1", "shard: 1", "tensor: 1", "sequence: false", "schedule: 1f1b", "pipeline: 1", "virtual_stages: 1",
        "zero: 0", "reshard: true", "overlap: true", "recompute: none", "recompute_every: 1", "microbatches: 8",
        "partitions: 1", "active_microbatches: 8", "overlapping_allreduce: true"}) {
    const auto spec = ParseSmall({fmt::format("train.parallel={{layout: auto, {}}}", given)});
    ASSERT_FALSE(spec) << given;
    EXPECT_THAT(spec.error().ToString(), HasSubstr("layout auto chooses it"));
  }
  const auto spec = ParseSmall({"train.parallel={layout: auto, placement: spread, reduce: bf16, memory_weight: 0.3}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->train.parallel.options, (engine::ParallelOptions{.reduce_in_bf16 = true, .placement = "spread"}));
  EXPECT_EQ(spec->train.parallel.WeightOfMemory(), 0.3);
  EXPECT_EQ(ParseSmall({"train.parallel={layout: auto, optimize: memory}"})->train.parallel.WeightOfMemory(), 0.8);
  EXPECT_EQ(ParseSmall({"train.parallel=auto"})->train.parallel.WeightOfMemory(), 0);
}

TEST(Spec, ReadsEveryKeyOfALayout) {
  const auto spec =
      ParseSmall({"run.processes_per_node=16", "train.global_batch=32",
                  "train.parallel={data: 4, shard: 2, tensor: 2, sequence: true, schedule: interleaved, pipeline: 2, "
                  "virtual_stages: 2, zero: 3, reshard: false, reduce: bf16, recompute: full, recompute_every: 2, "
                  "placement: PDT}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->train.parallel.options, (engine::ParallelOptions{.data = 4,
                                                                   .shard = 2,
                                                                   .tensor = 2,
                                                                   .sequence = true,
                                                                   .pipeline = 2,
                                                                   .schedule = engine::PipelineSchedule::kInterleaved,
                                                                   .virtual_stages = 2,
                                                                   .zero = 3,
                                                                   .reshard = false,
                                                                   .reduce_in_bf16 = true,
                                                                   .recompute = engine::Recompute::kFull,
                                                                   .recompute_every = 2,
                                                                   .placement = "PDT"}));
}

TEST(Spec, APlanMayBeForManyMachines) {
  const std::vector<std::string> many = {"run.nodes=2048", "run.processes_per_node=8", "train.global_batch=16384"};
  EXPECT_FALSE(Spec::Parse(kSmall, "job.yaml", many));
  const auto spec = Spec::Parse(kSmall, "job.yaml", many, SpecPurpose::kPlan);
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->ranks(), 16384);
}

TEST(Spec, EvaluationMayReadSourcesOfItsOwn) {
  const auto spec = ParseSmall({"eval={every_steps: 5, sources: [{url: \"s3://corpus/test/\", split: test}]}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_THAT(spec->eval.sources, testing::ElementsAre(data::DataSource{.url = "s3://corpus/test/", .split = "test"}));
  EXPECT_THAT(spec->Render(), HasSubstr("  sources:\n    - url: \"s3://corpus/test/\""));
}

TEST(Spec, EvaluationNeedsRecordsThatAreNotTrainedOn) {
  EXPECT_TRUE(ParseSmall({"eval.every_steps=5", "data.split.held_out=0.1"}));
  EXPECT_TRUE(ParseSmall({"eval={every_steps: 5, held_out: true}", "data.split.held_out=0.1"}));
  EXPECT_TRUE(ParseSmall({"eval={every_steps: 5, sources: [{url: \"s3://corpus/test/\"}]}"}));
  EXPECT_TRUE(ParseSmall({"eval.samples=5"})) << "nothing is evaluated";
  EXPECT_FALSE(ParseSmall({"eval.every_steps=5"}));
  EXPECT_FALSE(ParseSmall({"eval.every_steps=5", "data.split={held_out: 0.1, part: held_out}"}));
  const auto spec =
      ParseSmall({"eval={every_steps: 5, samples: 12, metrics: [loss, accuracy]}", "data.split.held_out=0.1"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->eval, (train::EvalOptions{.every_steps = 5, .samples = 12, .metrics = {"loss", "accuracy"}}));
}

TEST(Spec, EachOptimizerHasItsOwnDefaults) {
  const auto adamw = ParseSmall({}), lamb = ParseSmall({"train.optimizer={name: lamb, lr: 6.0e-3}"});
  const auto sgd = ParseSmall({"train.optimizer={name: sgd, nesterov: true, no_decay: [\"*bias\", \"*LayerNorm*\"]}"});
  ASSERT_TRUE(adamw && lamb && sgd);
  EXPECT_THAT(adamw->Render(), HasSubstr("betas: [0.9, 0.95]\n    eps: 1e-08\n    weight_decay: 0.1\n"));
  EXPECT_THAT(lamb->Render(), HasSubstr("betas: [0.9, 0.999]\n    eps: 1e-06\n    weight_decay: 0.01\n"));
  EXPECT_THAT(sgd->Render(), HasSubstr("momentum: 0.9\n    nesterov: true\n    weight_decay: 0\n    no_decay: "
                                       "[\"*bias\", \"*LayerNorm*\"]\n"));
}

TEST(Spec, NamesTheNearestKeyAndThePlace) {
  auto spec = ParseSmall({"train.setps=5"});
  ASSERT_FALSE(spec);
  EXPECT_THAT(spec.error().ToString(), HasSubstr("did you mean \"steps\""));
  spec = Spec::Parse(std::string(kSmall) + "run:\n  max_restart: 5\n", "job.yaml");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(spec.error().ToString(), HasSubstr("job.yaml:7:3"));
  EXPECT_THAT(spec.error().ToString(), HasSubstr("max_restarts"));
}

/// One assignment that must be refused, with words the message must have.
struct Refusal {
  std::string assignment;
  Code code;
  std::string says;
};

constexpr Code kInvalid = Code::kInvalidArgument, kUnsupported = Code::kUnsupported;

TEST(Spec, RefusesWithASentence) {
  const Refusal refusals[] = {

      Refusal{"name=../up", kInvalid, "letters, digits"},
      Refusal{"name=", kInvalid, "name"},
      Refusal{"model.family=lama", kInvalid, "one of bert, gemma2, gemma3_text, glm4, gpt2, gptj"},
      Refusal{"model.config.hidden_size=100", kInvalid, "multiple of twice num_heads"},
      Refusal{"model.config.num_kv_heads=3", kInvalid, "divide num_heads"},
      Refusal{"model={family: gpt2, config: {num_kv_heads: 2}}", kInvalid, "gpt2 has as many key-value heads"},
      Refusal{"model.config.rope_thetta=1", kInvalid, "did you mean \"rope_theta\""},
      Refusal{"model.config.rms_norm_eps=-1", kInvalid, "llama: rms_norm_eps must be positive"},
      Refusal{"model.config.rope_scaling={type: ntk, factor: 2}", kUnsupported, "\"ntk\" is not implemented"},
      Refusal{"model={family: gptj, config: {hidden_size: 64}}", kInvalid, "rotary_dim 64 must be even and at most"},
      Refusal{"model={family: gpt2, config: {attn_pdrop: big}}", kInvalid, "attn_pdrop"},
      Refusal{"train.parallel.tensor=3", kInvalid, "1 ranks are not a multiple of train.parallel.tensor 3"},
      Refusal{"train.parallel.placement=DDT", kInvalid, "one of cluster"},
      Refusal{"train.parallel.pipeline=gpipe", kInvalid, "whole number"},
      Refusal{"train.parallel={schedule: 1f1b, pipeline: simple}", kInvalid, "schedule says 1f1b"},
      Refusal{"train.parallel.schedule=gpipe", kInvalid, "zero_bubble"},
      Refusal{"train.parallel.zero=4", kInvalid, "from 0 to 3"},
      Refusal{"train.parallel.recompute=all", kInvalid, "selective"},
      Refusal{"train.parallel.data=2", kInvalid, "1 ranks / (tensor 1 × pipeline 1) are 1"},
      Refusal{"train.parallel.virtual_stages=0", kInvalid, "from 1 to"},
      Refusal{"train.parallel.recompute_every=0", kInvalid, "from 1 to"},
      Refusal{"train.parallel.offload_activations=true", kInvalid, "recompute is none"},
      Refusal{"train.parallel.reduce=f16", kInvalid, "f32, bf16"},
      Refusal{"train.parallel.reshard=5", kInvalid, "true or false"},
      Refusal{"train.parallel.optimize=time", kInvalid, "speed, memory"},
      Refusal{"train.parallel.memory_weight=1.5", kInvalid, "from 0 to 1"},
      Refusal{"train.parallel={ddp: false, data: 2}", kInvalid, "data says 2"},
      Refusal{"train.parallel={schedule: simple, active_microbatches: 3}", kInvalid, "all micro-batches"},
      Refusal{"train.parallel=best", kInvalid, "auto or a map of keys"},
      Refusal{"train.parallel={layout: auto, tensor: 2}", kInvalid, "layout auto chooses it"},
      Refusal{"train.parallel.microbatches=3", kInvalid, "8 should be a multiple of 3: parallel.microbatches (3)"},
      Refusal{"train={steps: 1, micro_batch: 2, parallel: {microbatches: 2}}", kInvalid,
              "2 × micro_batch (2) × 1 ranks are 4, but global_batch is 8"},
      Refusal{"train.parallel={partitions: 2, pipeline: 4}", kInvalid, "pipeline says 4 stages"},
      Refusal{"train.parallel={zero: 2, overlapping_allreduce: false}", kInvalid, "overlap is false, but zero 2"},
      Refusal{"train.parallel={layout: auto, overlap: false}", kInvalid, "layout auto chooses it"},
      Refusal{"train.parallel.overlap-grad-reduce=true", kInvalid, "write overlap: true or false"},
      Refusal{"train.parallel={partitions: 4, active_microbatches: 3}", kInvalid, "up to 4 micro-batches in flight"},
      Refusal{"train.parallel.tensor_parallel_degree=2", kInvalid, "write tensor"},
      Refusal{"train.parallel.num-layers-per-virtual-pipeline-stage=2", kInvalid, "virtual_stages"},
      Refusal{"train.parallel.use_distributed_optimizer=true", kInvalid, "a word of Megatron-LM: write zero: 1"},
      Refusal{"model.config.max_position_embeddings=16", kInvalid, "at least data.sequence_length"},
      Refusal{"model.config.hidden_size=big", kInvalid, "whole number"},
      Refusal{"model={from: \"s3://models/x\", config: {num_layers: 2}}", kInvalid, "leave it out"},
      Refusal{"model.from=ftp://x/y", kInvalid, "model.from"},
      Refusal{"data.sources=[]", kInvalid, "at least one"},
      Refusal{"data.sources=[{weight: 2}]", kInvalid, "data.sources[0].url: is required"},
      Refusal{"data.sources=[s3://corpus/y]", kInvalid, "map with url"},
      Refusal{"data.sources=[{url: \"s3://corpus/y\", wieght: 2}]", kInvalid, "did you mean \"weight\""},
      Refusal{"data.mode=stf", kInvalid, "pack, pad, sft"},
      Refusal{"data.layout=vicuna", kInvalid, "llama3"},
      Refusal{"data.split.held_out=1", kInvalid, "from 0 to"},
      Refusal{"data.sequence_length=1", kInvalid, "from 2 to"},
      Refusal{"data.tokenizer=\"\"", kInvalid, "must not be empty"},
      Refusal{"train.epochs=1", kInvalid, "exactly one of epochs and steps"},
      Refusal{"train.steps=0", kInvalid, "from 1 to"},
      Refusal{"train.micro_batch=3", kInvalid, "multiple of 3"},
      Refusal{"train.steps_this_run=0", kInvalid, "from 1 to"},
      Refusal{"train.optimizer.name=adam", kInvalid, "adamw, lamb, sgd"},
      Refusal{"train.optimizer.momentum=0.9", kInvalid, "adamw has no momentum"},
      Refusal{"train.optimizer={name: lamb, nesterov: true}", kInvalid, "lamb has no nesterov"},
      Refusal{"train.optimizer={name: sgd, betas: [0.9, 0.99]}", kInvalid, "sgd has no betas"},
      Refusal{"train.optimizer={name: sgd, momentum: 0, nesterov: true}", kInvalid, "momentum above 0"},
      Refusal{"train.freeze=bias", kInvalid, "list"},
      Refusal{"train.optimizer.no_decay=bias", kInvalid, "list"},
      Refusal{"train.optimizer.no_decay=[\"\"]", kInvalid, "empty"},
      Refusal{"train.schedule.name=wsdd", kInvalid, "inverse_sqrt"},
      Refusal{"train.schedule={name: constant, min_lr: 1.0e-5}", kInvalid, "constant has no min_lr"},
      Refusal{"train.schedule.power=2", kInvalid, "cosine has no power"},
      Refusal{"train.schedule={name: linear, stable_share: 0.8}", kInvalid, "linear has no stable_share"},
      Refusal{"train.schedule={name: wsd, decay: cosine}", kInvalid, "1-sqrt, linear"},
      Refusal{"train.schedule={name: wsd, timescale: 5}", kInvalid, "wsd has no timescale"},
      Refusal{"train.schedule={warmup_steps: 5, warmup_proportion: 0.1}", kInvalid, "not both"},
      Refusal{"train.loss.label_smoothing=1", kInvalid, "from 0 to"},
      Refusal{"train.neftune_alpha=-1", kInvalid, "from 0 to"},
      Refusal{"train.compile=fast", kInvalid, "auto, on"},
      Refusal{"train.profile={}", kInvalid, "needs steps, such as [10, 12]"},
      Refusal{"train.profile.steps=10", kInvalid, "the first and the last"},
      Refusal{"train.profile.steps=[12, 10]", kInvalid, "the first and the last"},
      Refusal{"train.profile.steps=[0, 1]", kInvalid, "from 1"},
      Refusal{"train.profile.steps=[10, 12]", kInvalid, "log.url"},
      Refusal{"log.histograms.every_steps=10", kInvalid, "log.tensorboard"},
      Refusal{"train.loss.z_loss=2", kInvalid, "from 0 to 1"},
      Refusal{"train.spikes.action=stop", kInvalid, "none, skip_step, roll_back"},
      Refusal{"train.spikes.sigma=0.5", kInvalid, "from 1 to"},
      Refusal{"train.spikes.window=3", kInvalid, "from 4 to"},
      Refusal{"train.optimizer.clip_norm=-1", kInvalid, "from 0 to"},
      Refusal{"train.global_batch=0", kInvalid, "from 1 to"},
      Refusal{"train.threads=-1", kInvalid, "from 0 to"},
      Refusal{"train.optimizer.betas=0.9", kInvalid, "two numbers"},
      Refusal{"train.optimizer.lr=.nan", kInvalid, "number"},
      Refusal{"train.schedule.min_lr=1", kInvalid, "should not be above"},
      Refusal{"train.precision=fp4", kInvalid, "f32, tf32, bf16, fp16, fp8"},
      Refusal{"train.fp8_scaling=row", kInvalid, "current, delayed, block"},
      Refusal{"train.fp8_scaling=block", kInvalid, "train.fp8_scaling: is for train.precision: fp8 (it is f32)"},
      Refusal{"lora={loraplus_lr_ratio: 0}", kInvalid, "loraplus_lr_ratio"},
      Refusal{"train.lora={r: 16}", kInvalid, "lora is a key beside train"},
      Refusal{"lora={r: 16}", kInvalid, "lora: adapts a trained model; name its folder or checkpoint in model.from"},
      Refusal{"log.wandb={mode: later}", kInvalid, "log.wandb.mode"},
      Refusal{"log.wandb={folder: runs}", kInvalid, "log.wandb.folder"},
      Refusal{"log.mlflow={url: databricks}", kInvalid, "log.mlflow.url: should be a URL of http:// or https://"},
      Refusal{"log.mlflow={url: \"https://me:word@mlflow\"}", kInvalid, "without a user's name or password"},
      Refusal{"log.callbacks=hooks.py", kInvalid, "log.callbacks"},
      Refusal{"log.metric_definitions=[a]", kInvalid, "log.metric_definitions[0]: should be a map with Name and Regex"},
      Refusal{"log.metric_definitions=[{Name: a}]", kInvalid, "log.metric_definitions[0].Regex: is required"},
      Refusal{"log.metric_definitions=[{Name: a, Regex: b, Unit: c}]", kInvalid, "Unit"},
      Refusal{"log.metric_definitions=[{Name: a, Regex: '('}]", kInvalid, "[0].Regex: is not a regular expression"},
      Refusal{"log.metric_definitions=[{Name: a, Regex: (b)(c)}]", kInvalid, "has 2 groups"},
      Refusal{"log.metric_definitions=[{Name: a, Regex: b}, {Name: a, Regex: c}]", kInvalid, "[1].Name: a has a"},
      Refusal{"eval.every_steps=5", kInvalid, "set data.split.held_out"},
      Refusal{"eval={sources: [{url: \"s3://corpus/x\"}], held_out: true}", kInvalid, "eval.held_out: leave it out"},
      Refusal{"eval.sources=[]", kInvalid, "at least one"},
      Refusal{"eval.sources=[{url: \"ftp://x/y\"}]", kInvalid, "eval.sources[0].url"},
      Refusal{"eval.metrics=[loss, bleu]", kInvalid, "one of loss, perplexity"},
      Refusal{"eval.metrics=[]", kInvalid, "a list of some of"},
      Refusal{"eval.samples=0", kInvalid, "from 1 to"},
      Refusal{"eval.every_steps=-1", kInvalid, "from 0 to"},
      Refusal{"eval.held_out=false", kUnsupported, "held_out"},
      Refusal{"checkpoint.keep_last=0", kInvalid, "from 1 to"},
      Refusal{"run.launcher=kubernetes", kInvalid, "run.image"},
      Refusal{"run.nodes=2", kInvalid, "on this machine only"},
      Refusal{"run.hosts=[n1]", kInvalid, "it is for launcher: ssh"},
      Refusal{"run={launcher: ssh}", kInvalid, "names no machine"},
      Refusal{"run={launcher: ssh, hosts: [n1, n1]}", kInvalid, "has n1 twice"},
      Refusal{"run={launcher: ssh, hosts: [-oProxyCommand=x]}", kInvalid, "is not a host's name"},
      Refusal{"run={launcher: ssh, hosts: [n1], nodes: 2}", kInvalid, "is 2, but 1 hosts are named"},
      Refusal{"run={launcher: ssh, hosts: [n1], ssh_options: [\"-p 22\", x]}", kInvalid,
              "x should be an option of ssh"},
      Refusal{"run={launcher: ssh, hosts: [n1], millrace_path: bin/millrace}", kInvalid, "an absolute path"},
      Refusal{"run.hang_timeout=soon", kInvalid, "auto or a time"},
      Refusal{"checkpoint.upload_limit=auto", kInvalid, "none or a time"},
      Refusal{"checkpoint.upload_limit=0s", kInvalid, "from 1s to 7d"},
      Refusal{"train=5", kInvalid, "map of keys"}};
  for (const auto& [assignment, code, says] : refusals) {
    auto spec = ParseSmall({assignment});
    ASSERT_FALSE(spec) << assignment;
    EXPECT_EQ(spec.error().code(), code) << spec.error().ToString();
    EXPECT_THAT(spec.error().ToString(), HasSubstr(says));
  }
}

TEST(Spec, RenderParsesBackToTheSameSpec) {
  Random random(20240601);
  for (int i = 0; i < 300; ++i) {
    Spec spec = random_spec::RandomSpec(random);
    if (i % 3 == 0) random_spec::SetRandomObjective(random, spec);
    std::string text = spec.Render();
    auto parsed = Spec::Parse(text, "rendered.yaml");
    ASSERT_TRUE(parsed) << parsed.error().ToString() << "\n" << text;
    ASSERT_TRUE(*parsed == spec) << text << "\nbecame\n" << parsed->Render();
    ASSERT_EQ(parsed->Render(), text);
  }
}

/// Whatever keys are declared: a changed value is printed and read back, or refused because of the other values.
TEST(Spec, EachKeyIsPrintedAndReadBack) {
  const std::vector<std::string> jobs[] = {
      {"run.processes_per_node=1"},
      {"train.optimizer.name=sgd", "train.schedule.name=wsd", "train.profile.steps=[1, 2]", "log.url=s3://runs/x",
       "data.mode=sft", "data.layout=turns", "data.response_template=A>", "run.elastic.min=1"},
      {"train.objective=dpo", "model.from=s3://models/llama", "lora.r=4", "train.schedule.name=inverse_sqrt"},
      {"train.objective=mlm", "model.from=s3://models/bert", "train.schedule.name=polynomial"},
      {"train.objective=classification", "model.from=s3://models/bert"},
      {"run.launcher=slurm", "run.nodes=2"},
      {"run={launcher: ssh, hosts: [n1]}"},
      {"run={launcher: kubernetes, image: \"millrace:1\"}"}};
  std::set<std::string> kept, refused;
  for (const std::vector<std::string>& job : jobs) {
    const Result<Spec> base = ParseSmall(job);
    ASSERT_TRUE(base) << base.error().ToString();
    for (int target = 0;; ++target) {
      Spec spec = *base;
      KeyChanger changer(target);
      VisitSpec(changer, spec);
      if (changer.changed().empty()) break;
      if (kept.contains(changer.changed())) continue;
      const std::string text = spec.Render();
      const Result<Spec> parsed = Spec::Parse(text, "changed.yaml");
      if (parsed) EXPECT_EQ(parsed->Render(), text) << changer.changed();
      (parsed ? kept : refused).insert(changer.changed());
    }
  }
  std::erase_if(refused, [&](const std::string& key) { return kept.contains(key); });
  EXPECT_GT(kept.size(), 4 * refused.size()) << "refused: " << testing::PrintToString(refused);
}

TEST(Spec, AnObjectiveHasKeysOfItsOwn) {
  auto refusal = [](std::vector<std::string> overrides) {
    auto spec = ParseSmall(std::move(overrides));
    return spec ? "accepted" : spec.error().ToString();
  };
  const std::string bert = "model.from=s3://models/bert", mlm = "train.objective=mlm";
  EXPECT_EQ(ParseSmall({bert, mlm})->data.dataset.objective, data::Objective::kMlm);
  EXPECT_THAT(refusal({bert, mlm, "data.mode=pack"}), HasSubstr("train.objective mlm has no mode"));
  EXPECT_THAT(refusal({bert, mlm, "data.classification.text=x"}), HasSubstr("has no classification"));
  EXPECT_THAT(refusal({"data.mlm.whole_word=true"}), HasSubstr("train.objective causal_lm has no mlm"));
  EXPECT_THAT(refusal({bert, "train.objective=classification", "data.template={x}"}), HasSubstr("has no template"));
  EXPECT_THAT(refusal({mlm}), HasSubstr("family llama cannot learn mlm"));
  EXPECT_THAT(refusal({mlm, "model.family=gpt2"}), HasSubstr("it learns causal_lm and classification"));
  EXPECT_EQ(refusal({"train.objective=classification", "model.family=gpt2"}), "accepted");
  EXPECT_THAT(refusal({"train.objective=classification", "model.family=gptj"}), HasSubstr("family gptj cannot learn"));
  EXPECT_THAT(refusal({bert, "train.objective=mlmm"}), HasSubstr("mlm"));
  EXPECT_THAT(refusal({bert, mlm, "data.mlm.probability=1"}), HasSubstr("probability"));
  EXPECT_THAT(refusal({bert, mlm, "data.mlm.max_predictions=257"}), HasSubstr("257 should not be above"));
  const std::string dpo = "train.objective=dpo", lora = "lora.r=4";
  EXPECT_EQ(ParseSmall({bert, dpo, lora})->data.dataset.objective, data::Objective::kDpo);
  EXPECT_THAT(refusal({bert, dpo}), HasSubstr("dpo needs the key lora"));
  EXPECT_THAT(refusal({bert, dpo, "lora={targets: [q_proj, lm_head]}"}), HasSubstr("dpo trains no adapter of lm_head"));
  EXPECT_THAT(refusal({bert, dpo, lora, "data.mode=sft"}), HasSubstr("train.objective dpo has no mode"));
  EXPECT_TRUE(ParseSmall({bert, dpo, lora, "data.best_fit=true"})->data.dataset.best_fit);
  EXPECT_THAT(refusal({bert, "train.objective=mlm", "data.best_fit=true"}), HasSubstr("has no best_fit"));
  EXPECT_THAT(refusal({bert, dpo, lora, "data.template={x}"}), HasSubstr("has no template"));
  EXPECT_THAT(refusal({bert, dpo, lora, "data.layout=guanaco"}), HasSubstr("template, auto, llama2"));
  EXPECT_THAT(refusal({bert, dpo, lora, "data.layout=chatml", "data.preference.prompt=x"}),
              HasSubstr("has no preference"));
  EXPECT_THAT(refusal({bert, dpo, lora, "train.loss.z_loss=0.1"}), HasSubstr("train.objective dpo has no loss"));
  EXPECT_THAT(refusal({bert, dpo, lora, "train.dpo={loss_type: ipo, label_smoothing: 0.1}"}),
              HasSubstr("ipo has no label_smoothing"));
  EXPECT_THAT(refusal({"train.dpo.beta=0.2"}), HasSubstr("train.objective causal_lm has no dpo"));
  EXPECT_THAT(refusal({"data.response_template=A>"}), HasSubstr("another layout than turns has no response_template"));
  EXPECT_THAT(refusal({"data.mode=sft", "data.layout=turns"}), HasSubstr("response_template"));
}

/// Blocks of YAML in the guide are valid job files. tools/job_keys.py makes its tables.
TEST(Spec, TheGuideIsRight) {
  const char* source = std::getenv("MILLRACE_SOURCE");
  if (source == nullptr) GTEST_SKIP() << "MILLRACE_SOURCE is not set";
  auto guide = ReadFile(std::string(source) + "/docs/guide/job-file.md");
  ASSERT_TRUE(guide) << guide.error().ToString();
  int blocks = 0;
  for (std::size_t at = 0; (at = guide->find("```yaml\n", at)) != std::string::npos; ++blocks) {
    at += 8;
    std::string block = guide->substr(at, guide->find("```", at) - at);
    auto spec = Spec::Parse(block, "job-file.md");
    EXPECT_TRUE(spec) << spec.error().ToString() << "\n" << block;
  }
  EXPECT_GE(blocks, 2);
  std::string underscored = *guide;
  std::ranges::replace(underscored, '-', '_');
  for (const ForeignWord& word : ForeignWords()) {
    EXPECT_TRUE(underscored.contains(word.word)) << "the guide lacks " << word.word;
  }
}

}  // namespace
}  // namespace millrace::jobs
