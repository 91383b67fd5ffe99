#include "apps/millrace-train/job_options.h"

#include <algorithm>

namespace millrace {
namespace {

engine::ModelConfig ModelOf(const jobs::Spec& spec) {
  const jobs::ModelSpec& from = spec.model;
  engine::ModelConfig model;
  model.family = from.family;
  model.vocab_size = from.vocab_size;
  model.hidden_size = from.hidden_size;
  model.intermediate_size = from.intermediate_size;
  model.num_layers = from.num_layers;
  model.num_heads = from.num_heads;
  model.num_kv_heads = from.num_kv_heads;
  model.max_positions =
      from.max_position_embeddings > 0 ? from.max_position_embeddings : spec.data.dataset.sequence_length;
  model.rms_norm_eps = from.rms_norm_eps;
  model.rope_theta = from.rope_theta;
  model.tie_word_embeddings = from.tie_word_embeddings;
  return model;
}

}  // namespace

Result<train::Options> OptionsOf(const jobs::Spec& spec) {
  const jobs::TrainSpec& from = spec.train;
  train::Options options;
  options.name = spec.name;
  options.model = ModelOf(spec);
  options.model_url = spec.model.from;
  options.precision = from.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  options.data = spec.data.dataset;
  options.tokenizer_url = spec.data.tokenizer;
  options.global_batch = from.global_batch;
  options.micro_batch = from.micro_batch;
  options.steps = from.steps;
  options.epochs = from.epochs;
  options.optimizer = {.beta1 = from.beta1, .beta2 = from.beta2, .eps = from.eps, .weight_decay = from.weight_decay};
  options.schedule = {
      .shape = from.schedule == "constant" ? engine::Schedule::Shape::kConstant : engine::Schedule::Shape::kCosine,
      .lr = from.lr,
      .min_lr = from.min_lr,
      .warmup_steps = from.warmup_steps};
  options.clip_norm = from.clip_norm;
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
  options.eval_every = spec.eval.every_steps;
  options.eval_samples = spec.eval.samples;
  options.eval_perplexity = std::ranges::find(spec.eval.metrics, "perplexity") != spec.eval.metrics.end();
  options.log_every = spec.log.every_steps;
  options.tensorboard_url = spec.log.tensorboard;
  options.metrics_listen = spec.log.metrics_listen;
  options.metrics_access = {.key_file = spec.log.metrics_key_file, .insecure = spec.log.metrics_insecure};
  if (spec.model.family != "llama") {
    return Fail(Code::kUnsupported, "model.family {}: this version trains llama", spec.model.family);
  }
  return options;
}

}  // namespace millrace
