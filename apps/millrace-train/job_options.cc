#include "apps/millrace-train/job_options.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace millrace {
namespace {

/// Returns the size of SwiGLU's inner layer: 8/3 of the hidden size, so that three matrices have as many weights as the
/// two of a plain MLP (Shazeer 2020), rounded up to a multiple of 8 for the vector units.
int LlamaInner(int hidden_size) { return (hidden_size * 8 / 3 + 7) / 8 * 8; }

/// Returns the config.json of the model that the job file describes.
Json ModelOf(const jobs::Spec& spec) {
  const jobs::ModelSpec& from = spec.model;
  const int positions =
      from.max_position_embeddings > 0 ? from.max_position_embeddings : spec.data.dataset.sequence_length;
  if (from.family == "llama") {
    return {{"model_type", "llama"},
            {"vocab_size", from.vocab_size},
            {"hidden_size", from.hidden_size},
            {"intermediate_size", from.intermediate_size.value_or(LlamaInner(from.hidden_size))},
            {"num_hidden_layers", from.num_layers},
            {"num_attention_heads", from.num_heads},
            {"num_key_value_heads", from.num_kv_heads},
            {"max_position_embeddings", positions},
            {"rms_norm_eps", from.rms_norm_eps},
            {"rope_theta", from.rope_theta},
            {"tie_word_embeddings", from.tie_word_embeddings.value_or(false)}};
  }
  // GPT-2 and GPT-J have the same keys.
  Json json = {
      {"model_type", from.family},  {"vocab_size", from.vocab_size},
      {"n_embd", from.hidden_size}, {"n_inner", from.intermediate_size.value_or(4 * from.hidden_size)},
      {"n_layer", from.num_layers}, {"n_head", from.num_heads},
      {"n_positions", positions},   {"tie_word_embeddings", from.tie_word_embeddings.value_or(from.family == "gpt2")}};
  const auto set = [&](std::string_view key, const auto& value) {
    if (value) json[std::string(key)] = *value;
  };
  set("rotary_dim", from.rotary_dim);
  set("embd_pdrop", from.embd_pdrop);
  set("attn_pdrop", from.attn_pdrop);
  set("resid_pdrop", from.resid_pdrop);
  return json;
}

/// Names were checked when the job file was parsed.
engine::OptimizerOptions OptimizerOf(const jobs::OptimizerSpec& from) {
  engine::OptimizerOptions options{.no_decay = from.no_decay};
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

engine::ParallelOptions ParallelOf(const jobs::Spec& spec) { return spec.train.parallel.options; }

/// Errors: kUnsupported if the training loop cannot run the layout.
Status CheckLayout(const jobs::Spec& spec) {
  const engine::ParallelOptions options = ParallelOf(spec);
  if (!spec.train.parallel.automatic && options.pipeline == 1 && options.zero == 0 &&
      options.recompute == engine::Recompute::kNone) {
    return {};
  }
  return Fail(Code::kUnsupported,
              "train.parallel: this version trains with data, tensor and sequence parallelism only; leave layout, "
              "pipeline, zero and recompute out (millrace job plan knows them all)");
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

}  // namespace

Result<train::Options> OptionsOf(const jobs::Spec& spec) {
  MR_TRY(CheckLayout(spec));
  const jobs::TrainSpec& from = spec.train;
  if (spec.data.dataset.objective != data::Objective::kCausalLm) {
    return Fail(Code::kUnsupported,
                "train.objective {} is not supported by this version: its data can be looked at (millrace data plan, "
                "millrace data cat), and models cannot learn it yet",
                data::ObjectiveName(spec.data.dataset.objective));
  }
  train::Options options;
  options.name = spec.name;
  options.model_config = ModelOf(spec);
  options.model_url = spec.model.from;
  options.precision = from.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  options.data = spec.data.dataset;
  options.tokenizer_url = spec.data.tokenizer;
  options.global_batch = from.global_batch;
  options.micro_batch = from.micro_batch;
  options.steps = from.steps;
  options.epochs = from.epochs;
  options.steps_this_run = from.steps_this_run;
  options.optimizer = OptimizerOf(from.optimizer);
  options.schedule = ScheduleOf(from.schedule, from.optimizer.lr);
  options.warmup_proportion = from.schedule.warmup_proportion;
  options.loss = {.label_smoothing = from.loss.label_smoothing, .z_loss = from.loss.z_loss};
  options.clip_norm = from.optimizer.clip_norm;
  const engine::ParallelOptions parallel = ParallelOf(spec);
  options.parallel = {.tensor = parallel.tensor, .sequence = parallel.sequence, .placement = parallel.placement};
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
  return options;
}

}  // namespace millrace
