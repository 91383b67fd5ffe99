#include "millrace/train/compare_outputs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/quantized_model.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/engine/weights/weight_names.h"

namespace millrace::train {
namespace {

using checkpoint::ModelSource;
using ConfigPointer = std::shared_ptr<const engine::ModelConfig>;

/// What quantizing a model may take while it streams. A guess: parts of its reads and writes have some MiB.
constexpr std::uint64_t kQuantizingBytes = 256 * kMiB;

Result<ConfigPointer> ConfigOf(const ModelSource& source) {
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr)
    return Fail(Code::kNotFound, "{} has no config.json; copy the config.json of the model there", source.name());
  Json json = *stored;
  json.erase("quantization_config");  // it describes the files, not the model
  ConfigPointer config = MR_TRY(engine::ParseModelConfig(json, source.name()));
  if (!config->generates()) {
    return Fail(Code::kUnsupported, "{} is a {} model, which does not predict next tokens", source.name(),
                config->family());
  }
  return config;
}

/// A model that is computed some blocks at a time.
struct StagedModel {
  ConfigPointer config;
  std::optional<engine::LoraOptions> lora = {};
  std::shared_ptr<const engine::QuantizedWeights> quantized = {};
  std::function<Status(engine::Model& part)> read_weights;

  std::int64_t BlocksAtOnce(std::uint64_t bytes) const {
    const plan::ModelShape shape = config->Shape();
    const std::uint64_t block = sizeof(float) * static_cast<std::uint64_t>(shape.Multiplied(shape.block));
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / std::max<std::uint64_t>(1, block)));
  }

  /// Returns the logits [length, vocabulary] of each sequence.
  Result<std::vector<at::Tensor>> Logits(const at::Tensor& inputs, std::uint64_t weight_bytes) const {
    const std::int64_t blocks = config->sizes().num_layers, at_once = BlocksAtOnce(weight_bytes);
    std::vector<at::Tensor> states(static_cast<std::size_t>(inputs.size(0)));  // hidden ones, in the end logits
    for (std::int64_t first = 0; first < blocks; first += at_once) {
      const std::int64_t last = std::min(blocks, first + at_once);
      const auto model = MR_TRY(engine::MakeModel(
          config, at::kFloat, at::kCPU, /*seed=*/0,
          {.stages = {{.first = first, .last = last, .embeds = first == 0, .predicts = last == blocks}},
           .lora = lora,
           .quantized = quantized,
           .initial_values = engine::InitialValues::kNone}));
      MR_TRY(read_weights(*model));
      MR_TRY(engine::CatchTorch("computing the logits", [&] {
        for (std::size_t i = 0; i < states.size(); ++i) {
          states[i] = model->Predict(0, inputs.narrow(0, static_cast<std::int64_t>(i), 1), states[i]);
        }
      }));
    }
    for (at::Tensor& logits : states) logits = logits.squeeze(0);
    return states;
  }
};

OutputDifference Compare(const std::vector<at::Tensor>& trained, const std::vector<at::Tensor>& merged,
                         const at::Tensor& counts) {
  OutputDifference difference;
  double errors = 0, squares = 0, equal = 0, divergences = 0;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    const at::Tensor counted = counts[static_cast<std::int64_t>(i)];
    const at::Tensor a = trained[i].index({counted}), b = merged[i].index({counted});
    if (a.size(0) == 0) continue;
    difference.tokens += a.size(0);
    errors += (b - a).square().sum(at::kDouble).item<double>();
    squares += a.square().sum(at::kDouble).item<double>();
    equal += a.argmax(1).eq(b.argmax(1)).sum().item<double>();
    // In double: the terms of a small divergence cancel.
    const at::Tensor log_p = at::log_softmax(a, 1, at::kDouble), log_q = at::log_softmax(b, 1, at::kDouble);
    divergences += (log_p.exp() * (log_p - log_q)).sum().item<double>();
  }
  const auto all = static_cast<double>(std::max<std::int64_t>(1, difference.tokens));
  difference.relative_error = squares > 0 ? std::sqrt(errors / squares) : 0;
  difference.equal_share = equal / all;
  difference.divergence = divergences / all;
  return difference;
}

}  // namespace

Json OutputDifference::ToJson() const {
  return {
      {"tokens", tokens}, {"relative_error", relative_error}, {"equal_share", equal_share}, {"divergence", divergence}};
}

ComparedTokens RandomTokens(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length) {
  const at::Generator generator = at::detail::createCPUGenerator(/*seed=*/1);
  return {.inputs = at::randint(vocabulary, {sequences, length}, generator, at::kLong),
          .counts = at::ones({sequences, length}, at::kBool)};
}

Result<ComparedTokens> TokensOf(data::Dataset& dataset, std::int64_t sequences, std::int64_t length,
                                const object::Call& call) {
  const auto whole = static_cast<std::size_t>(dataset.options().sequence_length);
  sequences = std::min(sequences, static_cast<std::int64_t>(dataset.samples_per_epoch()));
  length = std::min(length, static_cast<std::int64_t>(whole));
  ComparedTokens tokens{.inputs = at::zeros({sequences, length}, at::kLong),
                        .counts = at::zeros({sequences, length}, at::kBool)};
  std::vector<data::TokenId> inputs(whole), labels(whole);
  for (std::int64_t i = 0; i < sequences; ++i) {
    MR_TRY(dataset.ReadSample(/*epoch=*/0, static_cast<std::uint64_t>(i), inputs, labels, call));
    for (std::int64_t t = 0; t < length; ++t) {
      tokens.inputs[i][t] = inputs[static_cast<std::size_t>(t)];
      tokens.counts[i][t] = labels[static_cast<std::size_t>(t)] != data::kIgnoreLabel;
    }
  }
  if (!tokens.counts.any().item<bool>()) {
    return Fail(Code::kInvalidArgument,
                "the first {} samples have no label among their first {} tokens; raise --sequences or --length",
                sequences, length);
  }
  return tokens;
}

Result<engine::ModelSizes> SizesOf(object::Connection& connection, const MergedAdapter& merged, const Logger& log,
                                   const object::Call& call) {
  const auto source = MR_TRY(ModelSource::Open(connection, merged.merged_url, std::nullopt, log, call));
  return MR_TRY(ConfigOf(source))->sizes();
}

Result<OutputDifference> CompareOutputs(object::Connection& connection, const MergedAdapter& merged,
                                        const ComparedTokens& tokens, const ComparisonOptions& options,
                                        const object::Call& call) {
  const auto adapter = MR_TRY(ModelSource::Open(connection, merged.adapter_url, merged.step, options.log, call));
  const auto lora = MR_TRY(adapter.AdapterConfig(call));
  if (!lora) {
    return Fail(Code::kNotFound,
                "{} has no adapter_config.json; name the folder of an adapter, or a run that trained one",
                adapter.name());
  }
  auto base = MR_TRY(ModelSource::Open(connection, merged.base_url, std::nullopt, options.log, call));
  StagedModel trained{.config = MR_TRY(ConfigOf(base))};
  trained.lora = MR_TRY(engine::ReadPeftConfig(*lora, adapter.name() + "/adapter_config.json"));
  MR_TRY(engine::FindWhole(adapter.reader(), *trained.config, *trained.lora));
  if (merged.quantization) {
    MemoryBudget budget(kQuantizingBytes);
    const std::filesystem::path cache =
        options.quantized_folder.empty() ? MR_TRY(checkpoint::DefaultQuantizedFolder()) : options.quantized_folder;
    auto model = MR_TRY(
        checkpoint::OpenQuantizedModel(connection, base, *merged.quantization, cache, budget, options.log, call));
    trained.quantized = std::move(model.weights);
    base = MR_TRY(ModelSource::Open(connection, model.folder.string(), std::nullopt, options.log, call));
  }
  trained.read_weights = [&](engine::Model& part) -> Status {
    MR_TRY(engine::ReadWeights(base.reader(), part, nullptr, call));
    return engine::ReadAdapter(adapter.reader(), part, call);
  };
  const std::vector<at::Tensor> before = MR_TRY(trained.Logits(tokens.inputs, options.weight_bytes));

  const auto after = MR_TRY(ModelSource::Open(connection, merged.merged_url, std::nullopt, options.log, call));
  const StagedModel whole{.config = MR_TRY(ConfigOf(after)), .read_weights = [&](engine::Model& part) {
                            return engine::ReadWeights(after.reader(), part, nullptr, call);
                          }};
  const std::vector<at::Tensor> logits = MR_TRY(whole.Logits(tokens.inputs, options.weight_bytes));
  return engine::CatchTorch("comparing the logits", [&] { return Compare(before, logits, tokens.counts); });
}

}  // namespace millrace::train
