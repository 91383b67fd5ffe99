#include "millrace/jobs/spec/spec_checks.h"

#include <algorithm>
#include <cctype>

#include "millrace/engine/config/families.h"
#include "millrace/jobs/spec/foreign_checks.h"
#include "millrace/jobs/spec/model_config.h"

namespace millrace::jobs {
namespace {

using config::Node;

Status CheckName(const Node& root, const std::string& name) {
  bool good = name.size() <= 63 && std::isalnum(static_cast<unsigned char>(name.front())) != 0;
  for (unsigned char c : name) good = good && c < 128 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.');
  if (good) return {};
  return Fail(
      root["name"].Invalid("should be at most 63 letters, digits, '-', '_' and '.', the first a letter or digit"));
}

Status CheckModel(const Node& node, const Spec& spec) {
  const ModelSpec& model = spec.model;
  if (!model.from.empty()) return {};
  Node config = node["config"];
  if (model.hidden_size % (2 * model.num_heads) != 0) {
    return Fail(config["hidden_size"].Invalid(
        fmt::format("{} should be a multiple of twice num_heads ({}): heads have an even number of channels",
                    model.hidden_size, model.num_heads)));
  }
  if (model.num_kv_heads && model.num_heads % *model.num_kv_heads != 0) {
    return Fail(config["num_kv_heads"].Invalid(
        fmt::format("{} should divide num_heads ({})", *model.num_kv_heads, model.num_heads)));
  }
  if (model.max_position_embeddings != 0 && model.max_position_embeddings < spec.data.dataset.sequence_length) {
    return Fail(config["max_position_embeddings"].Invalid(
        fmt::format("{} should be at least data.sequence_length ({}), or 0 for just that",
                    model.max_position_embeddings, spec.data.dataset.sequence_length)));
  }
  // The tokenizer's vocabulary may not be known yet. It is checked when the model is made.
  Json json = ModelConfigOf(spec);
  if (model.vocab_size == 0) json["vocab_size"] = 1;
  const auto made = engine::ParseModelConfig(json, model.family);
  if (!made) return Fail(config.Invalid(made.error().message()).WithCode(made.error().code()));
  if (model.num_kv_heads && (*made)->sizes().num_kv_heads != *model.num_kv_heads) {
    return Fail(config["num_kv_heads"].Invalid(
        fmt::format("leave it out: {} has as many key-value heads as num_heads", model.family)));
  }
  return {};
}

/// Checks what can be known without the model's folder.
Status CheckObjective(const Node& root, const Spec& spec) {
  const data::DatasetOptions& data = spec.data.dataset;
  if (data.objective == data::Objective::kDpo && spec.lora &&
      std::ranges::any_of(spec.lora->options.targets,
                          [](const std::string& target) { return engine::TargetMatches(target, "lm_head"); })) {
    return Fail(root["lora"]["targets"].Invalid(
        "dpo trains no adapter of lm_head: its loss has no gradient for one; leave lm_head out"));
  }
  if (data.objective == data::Objective::kDpo && !spec.lora) {
    return Fail(root["train"]["objective"].Invalid(
        "dpo needs the key lora: the reference that it compares with is the model without its adapters"));
  }
  const engine::ModelFamily& family = *engine::FindFamily(spec.model.family);
  const bool classifies = family.set_heads != nullptr;
  const bool generates = data.objective == data::Objective::kCausalLm || data.objective == data::Objective::kDpo;
  const bool fits = generates ? family.causal : data.objective == data::Objective::kMlm ? !family.causal : classifies;
  if (spec.model.from.empty() && !fits) {
    return Fail(root["train"]["objective"].Invalid(
        fmt::format("a model of family {} cannot learn {}; it learns {}{}", spec.model.family,
                    data::ObjectiveName(data.objective), family.causal ? "causal_lm" : "mlm",
                    classifies ? " and classification" : "; BERT and GPT-2 learn classification, BERT learns mlm")));
  }
  if (data.objective == data::Objective::kMlm &&
      data.mlm.max_predictions.value_or(0) > static_cast<std::uint32_t>(data.sequence_length)) {
    return Fail(root["data"]["mlm"]["max_predictions"].Invalid(
        fmt::format("{} should not be above sequence_length ({})", *data.mlm.max_predictions, data.sequence_length)));
  }
  return {};
}

Status CheckTrain(const Node& node, const Spec& spec) {
  const TrainSpec& train = spec.train;
  const auto* const sgd = std::get_if<engine::SgdOptions>(&train.optimizer.method);
  if (sgd != nullptr && sgd->nesterov && sgd->momentum == 0) {
    return Fail(node["optimizer"]["nesterov"].Invalid("needs a momentum above 0"));
  }
  if (train.optimizer.storage.rounds_weights && train.precision != "bf16" && train.precision != "fp8") {
    return Fail(node["optimizer"]["stochastic_rounding"].Invalid(
        fmt::format("rounds bfloat16 weights; write train.precision: bf16 (it is {})", train.precision)));
  }
  if (train.fp8_scaling != engine::ops::Fp8Scaling::kCurrent && train.precision != "fp8") {
    return Fail(node["fp8_scaling"].Invalid(fmt::format("is for train.precision: fp8 (it is {})", train.precision)));
  }
  const engine::Schedule& schedule = train.schedule;
  if (schedule.min_lr > schedule.lr) {
    return Fail(node["schedule"]["min_lr"].Invalid(
        fmt::format("{} should not be above optimizer.lr ({})", schedule.min_lr, schedule.lr)));
  }
  if (schedule.warmup_steps > 0 && train.warmup_proportion > 0) {
    return Fail(node["schedule"]["warmup_proportion"].Invalid("give warmup_steps or warmup_proportion, not both"));
  }
  return {};
}

Status CheckLoraSpec(const Node& root, const Spec& spec) {
  if (!spec.lora) return {};
  const Node node = root["lora"];
  if (spec.model.from.empty()) {
    return Fail(node.Invalid("adapts a trained model; name its folder or checkpoint in model.from"));
  }
  if (!spec.train.freeze.empty()) {
    return Fail(root["train"]["freeze"].Invalid("leave it out: with lora, all weights of the model are frozen"));
  }
  if (!spec.lora->quantization() && spec.lora->base != spec.train.precision) {
    return Fail(node["base"].Invalid(fmt::format("{} should be train.precision ({}), or {}", spec.lora->base,
                                                 spec.train.precision, engine::kQuantizationNames)));
  }
  return {};
}

/// Completes micro_batch, and checks that the ranks, the batch and the sequence divide as the layout says.
Status CompleteParallel(const Node& node, Spec& spec) {
  TrainSpec& train = spec.train;
  const engine::ParallelOptions& options = train.parallel.options;
  const std::optional<int>& microbatches = train.parallel.microbatches;
  if (train.parallel.automatic) {
    if (train.global_batch % train.micro_batch == 0) return {};
    return Fail(node["global_batch"].Invalid(
        fmt::format("{} should be a multiple of micro_batch ({})", train.global_batch, train.micro_batch)));
  }
  const auto shape = engine::ShapeOf(options, spec.ranks());
  if (!shape) return Fail(node["parallel"].Invalid(shape.error().message()));
  const std::int64_t data = std::int64_t{shape->replica} * shape->shard;
  const std::string ranks = options.tensor * options.pipeline == 1
                                ? fmt::format("{} ranks", data)
                                : fmt::format("{} data-parallel ranks ({} ranks / (tensor {} × pipeline {}))", data,
                                              spec.ranks(), options.tensor, options.pipeline);
  if (microbatches && !node["micro_batch"]) {
    const std::int64_t parts = data * *microbatches;
    if (train.global_batch % parts != 0) {
      return Fail(node["global_batch"].Invalid(
          fmt::format("{} should be a multiple of {}: parallel.microbatches ({}) on each of {}", train.global_batch,
                      parts, *microbatches, ranks)));
    }
    train.micro_batch = static_cast<int>(train.global_batch / parts);
  }
  const std::int64_t together = data * train.micro_batch;
  if (train.global_batch % together != 0) {
    return Fail(
        node["global_batch"].Invalid(fmt::format("{} should be a multiple of {}: micro_batch ({}) on each of {}",
                                                 train.global_batch, together, train.micro_batch, ranks)));
  }
  if (microbatches && train.global_batch != together * *microbatches) {
    return Fail(node["parallel"]["microbatches"].Invalid(
        fmt::format("{} × micro_batch ({}) × {} are {}, but global_batch is {}: give micro_batch or microbatches",
                    *microbatches, train.micro_batch, ranks, together * *microbatches, train.global_batch)));
  }
  const std::int64_t tokens = std::int64_t{train.micro_batch} * spec.data.dataset.sequence_length;
  if (options.sequence && tokens % options.tensor != 0) {
    return Fail(node["parallel"]["sequence"].Invalid(
        fmt::format("{} tokens (micro_batch {} × data.sequence_length {}) do not divide among tensor {} ranks", tokens,
                    train.micro_batch, spec.data.dataset.sequence_length, options.tensor)));
  }
  return {};
}

Status CheckTrackers(const Node& node, const Spec& spec) {
  const LogSpec& log = spec.log;
  if (log.mlflow && !log.mlflow->url.empty() && !IsWebhookUrl(log.mlflow->url)) {
    return Fail(node["mlflow"]["url"].Invalid(
        "should be a URL of http:// or https:// without a user's name or password: MLflow's variables have these"));
  }
  if (spec.run.command.empty()) return {};
  if (!log.callbacks.empty()) {
    return Fail(node["callbacks"].Invalid("is for Millrace's own training, not for run.command"));
  }
  if ((log.wandb || log.mlflow) && log.metric_definitions.empty()) {
    return Fail(node[log.wandb ? "wandb" : "mlflow"].Invalid(
        "needs log.metric_definitions: the metrics that are found in the output of run.command"));
  }
  return {};
}

Status CheckLog(const Node& node, const Spec& spec) {
  const LogSpec& log = spec.log;
  if (spec.train.profile && log.url.empty()) {
    return Fail(node["url"].Invalid("is needed by train.profile: the folder that the trace is written to"));
  }
  if (log.histograms_every > 0 && log.tensorboard.empty()) {
    return Fail(node["histograms"].Invalid("needs log.tensorboard: the folder that histograms are written to"));
  }
  if (!log.webhook.empty() && !IsWebhookUrl(log.webhook)) {
    return Fail(node["webhook"].Invalid("should be a URL of http:// or https:// without a user's name or password"));
  }
  if (!log.webhook.empty() && !log.webhook_file.empty()) {
    return Fail(node["webhook_file"].Invalid("names the URL that log.webhook has: give one of them"));
  }
  return CheckTrackers(node, spec);
}

Status CheckEval(const Node& node, const Spec& spec) {
  if (spec.eval.every_steps == 0 || !spec.eval.sources.empty()) return {};
  const data::HeldOutSplit& split = spec.data.dataset.split;
  if (split.held_out > 0 && split.part == data::SplitPart::kTrain) return {};
  return Fail(
      node["every_steps"].Invalid("there is no held-out part to evaluate: set data.split.held_out, such as 0.01"
                                  " (and leave data.split.part at train), or name eval.sources"));
}

}  // namespace

bool IsWebhookUrl(std::string_view url) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!url.starts_with(scheme)) continue;
    const std::string_view rest = url.substr(scheme.size());
    const std::string_view host = rest.substr(0, rest.find_first_of("/?#"));
    return !host.empty() && !host.contains('@') &&
           std::ranges::all_of(rest, [](char c) { return c > ' ' && c < 0x7F; });
  }
  return false;
}

Status CheckSpec(const Node& root, Spec& spec, SpecPurpose purpose) {
  MR_TRY(CheckName(root, spec.name));
  MR_TRY(CompleteHosts(root["run"], spec.run, purpose));  // first: it decides how many ranks there are
  if (spec.run.command.empty()) {
    MR_TRY(CheckModel(root["model"], spec));
    MR_TRY(CheckObjective(root, spec));
    MR_TRY(CheckTrain(root["train"], spec));
    MR_TRY(CompleteParallel(root["train"], spec));
    MR_TRY(CheckEval(root["eval"], spec));
    MR_TRY(CheckLoraSpec(root, spec));
  } else {
    MR_TRY(CheckForeign(root, spec, purpose));
  }
  MR_TRY(CheckRun(root["run"], spec.run, purpose));
  MR_TRY(CheckPodName(root, spec));
  MR_TRY(CheckCost(root["cost"], spec.cost));
  MR_TRY(CheckLog(root["log"], spec));
  return {};
}

}  // namespace millrace::jobs
