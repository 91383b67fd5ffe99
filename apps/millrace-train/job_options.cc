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
  static_cast<train::TrainingOptions&>(options) = from;
  options.checkpoint = spec.checkpoint;
  options.eval = spec.eval;
  options.reports = spec.log;
  options.name = spec.name;
  options.model_config = jobs::ModelConfigOf(spec);
  options.model_url = spec.model.from;
  options.classes = spec.Classes();
  const engine::Precision precision = MR_TRY(engine::ParsePrecision(from.precision));
  options.precision = precision.type;
  options.tf32 = precision.tf32;
  if (precision.fp8) options.fp8 = from.fp8_scaling;
  if (precision.type == at::kHalf) options.loss_scale = train::LossScale::kFirst;
  options.data = spec.data.dataset;
  options.tokenizer_url = spec.data.tokenizer;
  if (spec.lora) {
    options.lora = spec.lora->options;
    options.adapter_url = spec.lora->adapter;
    options.base_quantization = spec.lora->quantization();
  }
  options.optimizer.storage.seed = from.seed;
  options.parallel = from.parallel.options;
  if (from.parallel.automatic) options.auto_memory_weight = from.parallel.WeightOfMemory();
  options.machine = spec.run.machine;
  options.setup = jobs::TrainingSetupOf(spec);
  options.check_network = std::ranges::find(spec.run.health_checks, "network") != spec.run.health_checks.end();
  options.job = spec.Render();
  MR_TRY(ShowJob(spec, options));
  if (options.profile) {
    options.profile->url = spec.log.url;
    options.profile->job = spec.name;
  }
  options.tracking.wandb = spec.log.wandb;
  options.tracking.mlflow = spec.log.mlflow;
  options.tracking.python = spec.log.python;
  options.callbacks = spec.log.callbacks;
  return options;
}

}  // namespace millrace
