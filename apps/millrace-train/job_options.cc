#include "apps/millrace-train/job_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "millrace/base/config.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/jobs/spec/model_config.h"
#include "millrace/jobs/training_setup.h"
#include "millrace/train/step_end/loss_scale.h"

namespace millrace {
namespace {

constexpr double kAnyNumber = std::numeric_limits<double>::max();

/// Names were checked when the job file was parsed.
engine::OptimizerOptions OptimizerOf(const jobs::OptimizerSpec& from, std::uint64_t seed) {
  engine::OptimizerOptions options{.rules = {.no_decay = from.no_decay},
                                   .storage = {.bf16_moments = from.moments == "bf16",
                                               .rounds_weights = from.stochastic_rounding,
                                               .seed = seed,
                                               .on_host = from.offload}};
  if (from.name == "sgd") {
    options.method = engine::SgdOptions{
        .momentum = from.sgd.momentum, .nesterov = from.sgd.nesterov, .weight_decay = from.sgd.weight_decay};
  } else if (from.name == "lamb") {
    options.method = engine::LambOptions{.beta1 = from.lamb.beta1,
                                         .beta2 = from.lamb.beta2,
                                         .eps = from.lamb.eps,
                                         .weight_decay = from.lamb.weight_decay};
  } else {
    options.method = engine::AdamwOptions{.beta1 = from.adamw.beta1,
                                          .beta2 = from.adamw.beta2,
                                          .eps = from.adamw.eps,
                                          .weight_decay = from.adamw.weight_decay};
  }
  return options;
}

train::SpikeOptions SpikesOf(const jobs::SpikeSpec& from) {
  using Action = train::SpikeOptions::Action;
  return {.action = from.action == "skip_step"   ? Action::kSkipStep
                    : from.action == "roll_back" ? Action::kRollBack
                                                 : Action::kNone,
          .sigma = from.sigma,
          .window = static_cast<std::uint32_t>(from.window)};
}

engine::Schedule ScheduleOf(const jobs::ScheduleSpec& from, double lr) {
  using Shape = engine::Schedule::Shape;
  const std::map<std::string_view, Shape> shapes = {
      {"constant", Shape::kConstant},     {"cosine", Shape::kCosine},         {"linear", Shape::kLinear},
      {"polynomial", Shape::kPolynomial}, {"wsd", Shape::kWarmupStableDecay}, {"inverse_sqrt", Shape::kInverseSqrt}};
  using Decay = engine::Schedule::Decay;
  return {.shape = shapes.at(from.name),
          .lr = lr,
          .min_lr = from.min_lr,
          .warmup_steps = from.warmup_steps,
          .power = from.power,
          .stable_share = from.stable_share,
          .decay = from.decay == "linear" ? Decay::kLinear : Decay::kOneMinusSqrt,
          .timescale = from.timescale};
}

/// Adds the scalars of `node` by their paths: "train.optimizer.lr".
void AddHyperParameters(const config::Node& node, const std::string& path, metrics::HyperParameters& into) {
  if (node.IsMap()) {
    for (const std::string& key : node.Keys()) AddHyperParameters(node[key], fmt::format("{}.{}", path, key), into);
  } else if (node.IsSequence()) {
    const std::vector<config::Node> elements = node.Elements();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      AddHyperParameters(elements[i], fmt::format("{}[{}]", path, i), into);
    }
  } else if (const auto number = node.Number(-kAnyNumber, kAnyNumber)) {
    into[path] = *number;
  } else if (auto text = node.String(); text && !text->empty()) {
    into[path] = *std::move(text);
  }
}

/// Sets what TensorBoard shows of the job: the sections that decide what is learnt are hyperparameters.
Status ShowJob(const jobs::Spec& spec, train::Options& options) {
  jobs::Spec shown = spec;
  shown.log.webhook.clear();  // who has the URL can post there
  options.shown_job = shown.Render();
  const config::Document document = MR_TRY(config::Document::Parse(options.shown_job, spec.name));
  for (const char* section : {"model", "data", "train", "lora", "eval"}) {
    AddHyperParameters(document.Root()[section], section, options.hyperparameters);
  }
  return {};
}

}  // namespace

Result<train::Options> OptionsOf(const jobs::Spec& spec) {
  const jobs::TrainSpec& from = spec.train;
  train::Options options;
  options.name = spec.name;
  options.model_config = jobs::ModelConfigOf(spec);
  options.model_url = spec.model.from;
  options.classes = spec.Classes();
  const engine::Precision precision = MR_TRY(engine::ParsePrecision(from.precision));
  options.precision = precision.type;
  options.tf32 = precision.tf32;
  if (precision.fp8) options.fp8 = engine::ops::ParseFp8Scaling(from.fp8_scaling).value();
  if (precision.type == at::kHalf) options.loss_scale = train::LossScale::kFirst;
  options.data = spec.data.dataset;
  options.tokenizer_url = spec.data.tokenizer;
  options.global_batch = from.global_batch;
  options.micro_batch = from.micro_batch;
  options.steps = from.steps;
  options.epochs = from.epochs;
  options.steps_this_run = from.steps_this_run;
  options.freeze = from.freeze;
  if (spec.lora) {
    options.lora = spec.lora->options;
    options.adapter_url = spec.lora->adapter;
    options.base_quantization = spec.lora->quantization();
  }
  options.optimizer = OptimizerOf(from.optimizer, from.seed);
  if (spec.lora) options.optimizer.rules.loraplus_lr_ratio = spec.lora->loraplus_lr_ratio;
  options.schedule = ScheduleOf(from.schedule, from.optimizer.lr);
  options.warmup_proportion = from.schedule.warmup_proportion;
  options.loss = {.label_smoothing = from.loss.label_smoothing, .z_loss = from.loss.z_loss};
  options.dpo = {
      .loss = from.dpo.loss_type == "ipo" ? engine::DpoOptions::Loss::kIpo : engine::DpoOptions::Loss::kSigmoid,
      .beta = from.dpo.beta,
      .label_smoothing = from.dpo.label_smoothing};
  options.neftune_alpha = from.neftune_alpha;
  options.clip_norm = from.optimizer.clip_norm;
  options.spikes = SpikesOf(from.spikes);
  options.parallel = from.parallel.options;
  if (from.parallel.automatic) options.auto_memory_weight = from.parallel.WeightOfMemory();
  options.machine = spec.run.machine;
  options.setup = jobs::TrainingSetupOf(spec);
  options.check_network = std::ranges::find(spec.run.health_checks, "network") != spec.run.health_checks.end();
  using train::Compile;
  options.compile = from.compile == "on" ? Compile::kOn : from.compile == "off" ? Compile::kOff : Compile::kAuto;
  options.compile_cache = from.compile_cache;
  options.seed = from.seed;
  options.checkpoint_url = spec.checkpoint.url;
  options.checkpoint_every = spec.checkpoint.every_steps;
  const jobs::CheckpointSpec& checkpoint = spec.checkpoint;
  options.retention = {.keep_last = checkpoint.keep_last,
                       .keep_every = checkpoint.keep_every,
                       .keep_best = checkpoint.keep_best,
                       .metric = checkpoint.best_metric,
                       .greatest = checkpoint.best_mode == "max"};
  if (!checkpoint.local_path.empty())
    options.local = checkpoint::LocalTierOptions{
        .path = checkpoint.local_path, .keep = checkpoint.local_keep, .copies = checkpoint.local_copies};
  options.local_every = checkpoint.local_every_steps;
  options.local_beside = checkpoint.local_beside;
  using WhenBusy = train::Options::WhenBusy;
  options.when_busy = checkpoint.when_busy == "skip"    ? WhenBusy::kSkip
                      : checkpoint.when_busy == "delay" ? WhenBusy::kDelay
                                                        : WhenBusy::kWait;
  options.checkpoint_bandwidth = checkpoint.bandwidth;
  options.checkpoint_upload_limit = checkpoint.upload_limit.value_or(Duration::zero());
  options.job = spec.Render();
  MR_TRY(ShowJob(spec, options));
  options.eval_every = spec.eval.every_steps;
  options.eval_samples = spec.eval.samples;
  options.eval_sources = spec.eval.sources;
  options.eval_perplexity = std::ranges::find(spec.eval.metrics, "perplexity") != spec.eval.metrics.end();
  options.eval_accuracy = std::ranges::find(spec.eval.metrics, "accuracy") != spec.eval.metrics.end();
  if (from.profile) {
    options.profile = train::ProfileOptions{.first_step = from.profile->first_step,
                                            .last_step = from.profile->last_step,
                                            .url = spec.log.url,
                                            .job = spec.name};
  }
  options.log_every = spec.log.every_steps;
  options.tensorboard_url = spec.log.tensorboard;
  options.histograms_every = spec.log.histograms_every;
  options.metrics_listen = spec.log.metrics_listen;
  options.metrics_access = {.key_file = spec.log.metrics_key_file, .insecure = spec.log.metrics_insecure};
  return options;
}

}  // namespace millrace
