// Random job files for tests, anywhere in the space of valid ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "millrace/base/hash/random.h"
#include "millrace/jobs/spec/model_config.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs::random_spec {

template <class T>
T Pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(values.size())];
}

inline std::string RandomText(Random& random) {
  std::string text;
  for (std::uint64_t i = random.Below(12); i > 0; --i) {
    text += Pick<std::string>(random,
                              {"{text}", "\n", "\t", "\"", "\\", ": ", "#", "中", "\x01", "é", "'", "- ", "\r", "%"});
  }
  return text + "x";
}

inline double RandomNumber(Random& random, double least, double most) {
  return least + (most - least) * random.Uniform();
}

template <class Adam>
void SetRandomAdam(Random& random, Adam& adam) {
  adam.beta1 = RandomNumber(random, 0, 0.99);
  adam.beta2 = RandomNumber(random, 0, 0.999);
  adam.eps = RandomNumber(random, 1e-12, 1e-6);
  adam.weight_decay = RandomNumber(random, 0, 0.1);
}

inline void SetRandomOptimizer(Random& random, TrainSpec& train) {
  engine::OptimizerOptions& optimizer = train.optimizer;
  engine::ChooseOptimizer(Pick<std::string>(random, {"adamw", "lamb", "sgd"}), optimizer);
  train.schedule.lr = RandomNumber(random, 1e-6, 1e-2);
  if (auto* sgd = std::get_if<engine::SgdOptions>(&optimizer.method)) {
    sgd->momentum = RandomNumber(random, 0.1, 0.99);
    sgd->nesterov = random.Below(2) == 0;
    sgd->weight_decay = RandomNumber(random, 0, 0.1);
  }
  if (auto* lamb = std::get_if<engine::LambOptions>(&optimizer.method)) SetRandomAdam(random, *lamb);
  if (auto* adamw = std::get_if<engine::AdamwOptions>(&optimizer.method)) SetRandomAdam(random, *adamw);
  train.clip_norm = RandomNumber(random, 0, 10);
  optimizer.storage.bf16_moments = random.Below(2) == 0;
  for (std::uint64_t i = random.Below(3); i > 0; --i) optimizer.rules.no_decay.push_back("*" + RandomText(random));
}

inline void SetRandomSchedule(Random& random, TrainSpec& train) {
  using Shape = engine::Schedule::Shape;
  engine::Schedule& schedule = train.schedule;
  schedule.shape = static_cast<Shape>(random.Below(6));
  if (random.Below(2) == 0) {
    schedule.warmup_steps = random.Below(100);
  } else {
    train.warmup_proportion = random.Uniform();
  }
  if (schedule.shape != Shape::kConstant) schedule.min_lr = schedule.lr * random.Uniform();
  if (schedule.shape == Shape::kPolynomial) schedule.power = RandomNumber(random, 0.5, 3);
  if (schedule.shape == Shape::kWarmupStableDecay) {
    schedule.stable_share = random.Uniform();
    schedule.decay = static_cast<engine::Schedule::Decay>(random.Below(2));
  }
  if (schedule.shape == Shape::kInverseSqrt) schedule.timescale = random.Below(1000);
}

/// Sets the layout, the number of ranks, and a batch that they can divide.
inline void SetRandomLayout(Random& random, Spec& s) {
  using engine::PipelineSchedule, engine::Recompute;
  ParallelSpec& parallel = s.train.parallel;
  engine::ParallelOptions& options = parallel.options;
  const int microbatches = static_cast<int>(1 + random.Below(8));
  options.placement = Pick<std::string>(random, {"cluster", "spread", "PDT"});
  options.reduce_in_bf16 = random.Below(2) == 0;
  parallel.optimize = Pick<std::string>(random, {"speed", "memory"});
  if (random.Below(3) == 0) parallel.memory_weight = random.Uniform();
  parallel.automatic = random.Below(4) == 0;
  if (parallel.automatic) {
    s.run.processes_per_node = static_cast<int>(1 + random.Below(8));
    s.train.global_batch = s.train.micro_batch * microbatches;
    return;
  }
  const int data = 1 << random.Below(3);
  options.tensor = 1 << random.Below(3);
  options.pipeline = 1 << random.Below(3);
  options.sequence = random.Below(2) == 0;
  if (random.Below(2) == 0) options.data = data;
  options.schedule = Pick(random, {PipelineSchedule::kSimple, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble});
  if (options.pipeline > 1 && random.Below(2) == 0) {
    options.schedule = PipelineSchedule::kInterleaved;
    options.virtual_stages = static_cast<int>(2 + random.Below(3));
  }
  options.zero = static_cast<int>(random.Below(4));
  if (options.zero > 0 && random.Below(2) == 0) options.shard = 1 + static_cast<int>(random.Below(data)) / 2;
  if (options.shard == 0 || data % options.shard != 0) options.shard = 0;
  options.reshard = random.Below(2) == 0;
  options.overlap = options.zero > 1 || random.Below(2) == 0;
  options.recompute = Pick(random, {Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  options.recompute_every = static_cast<int>(1 + random.Below(4));
  options.offload_activations = options.recompute == Recompute::kFull && random.Below(2) == 0;
  s.run.processes_per_node = data * options.tensor * options.pipeline;
  s.train.global_batch = data * s.train.micro_batch * microbatches;
  if (random.Below(2) == 0) parallel.microbatches = microbatches;
}

/// A Spec anywhere in the space of valid ones.
inline Spec RandomSpec(Random& random) {
  Spec s;
  s.name = Pick<std::string>(random, {"a", "llama-demo", "7b.2_x", "null", "1.5"});
  if (random.Below(3) == 0) {
    s.model.from = "s3://models/llama";
    if (random.Below(2) == 0) {
      LoraSpec& lora = s.lora.emplace();  // base: with the precision, below
      if (random.Below(2) == 0) lora.base = random.Below(2) == 0 ? "nf4" : "int8";
      lora.options.dropout = RandomNumber(random, 0, 0.9);
      s.train.optimizer.rules.loraplus_lr_ratio = RandomNumber(random, 1, 32);
      if (random.Below(2) == 0) lora.adapter = "s3://adapters/" + RandomText(random);
      if (lora.adapter.empty()) {
        lora.options.rank = static_cast<int>(1 + random.Below(64));
        lora.options.alpha = RandomNumber(random, 1, 64);
        lora.options.rslora = random.Below(2) == 0;
        lora.options.dora = random.Below(2) == 0;
        if (random.Below(2) == 0) lora.options.targets = {"q_proj", "mlp.down_proj"};
      }
    }
  } else {
    s.model.family = Pick<std::string>(random, {"llama", "gpt2", "gptj"});
    s.model.num_heads = static_cast<int>(4 * (1 + random.Below(4)));
    s.model.hidden_size = 8 * s.model.num_heads;
    if (s.model.family == "llama") {
      if (random.Below(2) == 0) s.model.num_kv_heads = static_cast<int>(1 << random.Below(3));
      s.model.options["rms_norm_eps"] = RandomNumber(random, 1e-9, 1e-3);
      if (random.Below(2) == 0) s.model.options["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4}};
    } else {
      if (s.model.family == "gptj") s.model.options["rotary_dim"] = 2 * (1 + random.Below(4));
      if (random.Below(2) == 0) s.model.options["activation_function"] = "relu";
      if (random.Below(2) == 0) s.model.options["attn_pdrop"] = RandomNumber(random, 0, 0.9);
      if (random.Below(2) == 0) s.model.options["resid_pdrop"] = RandomNumber(random, 0, 0.9);
    }
    if (random.Below(2) == 0) s.model.options["tie_word_embeddings"] = random.Below(2) == 0;
    if (random.Below(2) == 0) s.model.intermediate_size = static_cast<int>(1 + random.Below(1000));
  }
  for (std::uint64_t i = 1 + random.Below(3); i > 0; --i) {
    s.data.dataset.sources.push_back({"s3://bucket/" + RandomText(random), RandomNumber(random, 0.1, 9)});
    if (random.Below(2) == 0) s.data.dataset.sources.back().url.insert(0, "@");
    s.data.dataset.sources.back().format = Pick<std::string>(random, {"", "lines+gzip"});
    s.data.dataset.sources.back().split = Pick<std::string>(random, {"", "en:train"});
  }
  if (random.Below(2) == 0) s.data.dataset.max_broken = random.Below(1000);
  if (random.Below(2) == 0) {
    s.data.dataset.disk_cache = "/nvme/" + RandomText(random);
    s.data.dataset.disk_cache_bytes = (4 << 20) + random.Below(std::uint64_t{1} << 40);
  }
  s.data.dataset.cache_url = Pick<std::string>(random, {"", "s3://indexes/of"});
  s.data.dataset.template_text = RandomText(random);
  s.data.tokenizer = "file:///models/tokenizer.model";
  s.data.dataset.mode =
      Pick<data::SequenceMode>(random, {data::SequenceMode::kPack, data::SequenceMode::kPad, data::SequenceMode::kSft});
  s.data.dataset.layout = Pick<std::string>(random, {"", "alpaca", "chatml", "turns"});
  if (s.data.dataset.layout == "turns") {
    s.data.dataset.instruction_template = Pick<std::string>(random, {"", "### Human:"});
    s.data.dataset.response_template = RandomText(random);
  }
  s.data.dataset.response_text = RandomText(random);
  s.data.dataset.best_fit = random.Below(2) == 0;
  s.data.dataset.split_long = random.Below(2) == 0;
  s.data.dataset.boundaries = random.Below(2) == 0;
  s.data.dataset.split.held_out = RandomNumber(random, 0, 0.5);
  s.data.dataset.split.part = Pick<data::SplitPart>(random, {data::SplitPart::kTrain, data::SplitPart::kHeldOut});
  s.data.dataset.split.seed = random.Next() >> 1;
  s.data.dataset.shuffle_seed = random.Next() >> 1;
  s.data.dataset.shuffle_window = random.Below(1 << 20);
  if (random.Below(2) == 0) {
    s.train.epochs = RandomNumber(random, 0.1, 10);
  } else {
    s.train.steps = 1 + random.Below(1000);
  }
  s.train.micro_batch = static_cast<int>(1 + random.Below(8));
  SetRandomLayout(random, s);
  s.train.precision = Pick<std::string>(random, {"f32", "bf16", "fp8"});
  if (s.train.precision == "fp8") {
    s.train.fp8_scaling = static_cast<engine::ops::Fp8Scaling>(1 + random.Below(3));
  }
  s.train.optimizer.storage.rounds_weights = s.train.precision != "f32" && random.Below(2) == 0;
  s.train.optimizer.storage.on_host = random.Below(2) == 0;
  if (s.lora && !s.lora->quantization()) s.lora->base = s.train.precision;
  if (random.Below(2) == 0) s.train.steps_this_run = 1 + random.Below(1000);
  for (std::uint64_t i = s.lora ? 0 : random.Below(3); i > 0; --i) s.train.freeze.push_back("*" + RandomText(random));
  SetRandomOptimizer(random, s.train);
  SetRandomSchedule(random, s.train);
  s.train.loss.label_smoothing = RandomNumber(random, 0, 0.5);
  s.train.loss.z_loss = RandomNumber(random, 0, 1e-3);
  s.train.neftune_alpha = RandomNumber(random, 0, 15);
  s.train.spikes = {.action = static_cast<train::SpikeOptions::Action>(random.Below(3)),
                    .sigma = RandomNumber(random, 1, 20),
                    .window = static_cast<std::uint32_t>(4 + random.Below(100))};
  s.train.compile = static_cast<train::Compile>(random.Below(3));
  s.train.compile_cache = Pick<std::string>(random, {"", "s3://runs/compiled"});
  s.train.threads = static_cast<int>(random.Below(8));
  s.train.seed = random.Next() >> 1;
  s.data.dataset.split.part =
      s.data.dataset.split.held_out > 0 && random.Below(2) == 0 ? data::SplitPart::kTrain : s.data.dataset.split.part;
  if (s.data.dataset.split.held_out > 0 && s.data.dataset.split.part == data::SplitPart::kTrain)
    s.eval.every_steps = random.Below(100);
  if (random.Below(3) == 0) {
    s.eval.sources = {{.url = "s3://corpus/test.jsonl", .format = "jsonl"}, {.url = "s3://corpus/#test", .weight = 2}};
    s.eval.every_steps = random.Below(100);
  }
  s.eval.samples = 1 + random.Below(1000);
  if (random.Below(2) == 0) s.eval.metrics = Pick<std::vector<std::string>>(random, {{"loss"}, {"loss", "accuracy"}});
  s.checkpoint.url = Pick<std::string>(random, {"", "s3://runs/x"});
  s.checkpoint.retention.keep_every = random.Below(5000);
  s.checkpoint.retention.keep_best = static_cast<int>(random.Below(5));
  s.checkpoint.retention.greatest = random.Below(2) == 0;
  s.checkpoint.when_busy = static_cast<train::WhenBusy>(random.Below(3));
  s.checkpoint.bandwidth = random.Below(std::uint64_t{1} << 40);
  if (random.Below(2) == 0) s.checkpoint.upload_limit = std::chrono::milliseconds(1000 + random.Below(100'000));
  if (random.Below(2) == 0) {
    s.checkpoint.local = {.path = "/nvme/ckpt", .copies = 1 + static_cast<int>(random.Below(3))};
  }
  s.checkpoint.local_every_steps = 1 + random.Below(50);
  s.checkpoint.local_beside = random.Below(2) == 0;
  if (random.Below(2) == 0) s.run.hang_timeout = std::chrono::milliseconds(1000 + random.Below(100'000));
  s.run.machine = Pick<std::string>(random, {"", "p5.48xlarge"});
  s.log.metrics_listen = Pick<std::string>(random, {"", "127.0.0.1:9465"});
  s.log.metrics_key_file = Pick<std::string>(random, {"", "/etc/millrace/keys"});
  s.log.metrics_insecure = random.Below(2) == 0;
  s.log.url = Pick<std::string>(random, {"", "s3://runs/x/log"});
  s.log.webhook = Pick<std::string>(random, {"", "https://notes.example/hook?a=b"});
  if (s.log.webhook.empty()) s.log.webhook_file = Pick<std::string>(random, {"", "/etc/millrace/webhook"});
  if (!s.log.url.empty() && random.Below(2) == 0)
    s.train.profile = {.first_step = 10, .last_step = 10 + random.Below(3)};
  s.log.tensorboard = Pick<std::string>(random, {"", "runs/tb"});
  if (!s.log.tensorboard.empty()) s.log.histograms_every = random.Below(100);
  if (random.Below(2) == 0) {
    s.log.wandb = {.project = Pick<std::string>(random, {"", "llama: a"}),
                   .tags = {"x", "y z"},
                   .mode = Pick<std::string>(random, {"auto", "online", "offline"}),
                   .folder = Pick<std::string>(random, {"", "/wandb"})};
  }
  if (random.Below(2) == 0) {
    s.log.mlflow = {.url = Pick<std::string>(random, {"", "https://mlflow.example:5000/x"}),
                    .run_name = Pick<std::string>(random, {"", "first"})};
    if (random.Below(2) == 0) s.log.mlflow->tags = {{"team", "nlp"}, {"a b", "c"}};
  }
  s.log.callbacks = Pick<std::string>(random, {"", "/home/me/hooks.py"});
  s.log.python = Pick<std::string>(random, {"python3", "/opt/venv/bin/python"});
  if (random.Below(2) == 0) s.log.metric_definitions = {{"a b", R"('loss': "([0-9.]*)\s)"}, {"step", "b"}};
  return s;
}

/// Data options that belong to one objective. The model is a folder, because random weights are causal models.
inline void SetRandomObjective(Random& random, Spec& s) {
  s.model = {.from = "s3://models/bert"};
  data::DatasetOptions& data = s.data.dataset;
  const data::DatasetOptions defaults;
  data.mode = defaults.mode;
  data.layout = defaults.layout;
  data.instruction_template = data.response_template = "";
  data.response_text = defaults.response_text;
  data.best_fit = data.split_long = data.boundaries = false;
  if (s.lora && random.Below(2) == 0) {
    data.objective = data::Objective::kDpo;
    data.template_text = defaults.template_text;
    data.layout = Pick<std::string>(random, {"", "chatml"});
    data.best_fit = random.Below(2) == 0;
    if (data.layout.empty()) data.preference = {.prompt = "{q}", .chosen = "{good}", .rejected = RandomText(random)};
    s.train.loss = {};
    using Loss = engine::DpoOptions::Loss;
    s.train.dpo = {.loss = static_cast<Loss>(random.Below(2)), .beta = RandomNumber(random, 0.01, 1)};
    if (s.train.dpo.loss == Loss::kSigmoid) s.train.dpo.label_smoothing = RandomNumber(random, 0, 0.5);
  } else if (random.Below(2) == 0) {
    data.objective = data::Objective::kMlm;
    data.mlm = {.probability = RandomNumber(random, 0.01, 0.9),
                .whole_word = random.Below(2) == 0,
                .next_sentence = random.Below(2) == 0,
                .short_sequences = RandomNumber(random, 0, 1)};
    if (random.Below(2) == 0) data.mlm.max_predictions = 1 + random.Below(data.sequence_length);
  } else {
    data.objective = data::Objective::kClassification;
    data.template_text = defaults.template_text;
    data.classification = {.text = Pick<std::string>(random, {"sentence", "a: \"b\""}),
                           .pair = Pick<std::string>(random, {"", "sentence2"}),
                           .label = Pick<std::string>(random, {"label", "gold"})};
    if (random.Below(2) == 0) data.classification.classes = {"no", "yes, true"};
  }
}

}  // namespace millrace::jobs::random_spec
