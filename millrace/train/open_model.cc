#include "millrace/train/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "millrace/checkpoint/convert/quantized_model.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/data/reading/bert_tokens.h"
#include "millrace/engine/config/config_members.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/weights/unused_weights.h"
#include "millrace/engine/weights/weight_names.h"
#include "millrace/train/auto_layout.h"

namespace millrace::train {
namespace {

class ModelOpening {
 public:
  ModelOpening(object::Connection& connection, engine::Collective& group, const Options& options,
               const tokenizer::Tokenizer& tokenizer, MemoryBudget& budget, Heartbeat& heartbeat, Clock& clock)
      : connection_(connection),
        group_(group),
        options_(options),
        tokenizer_(tokenizer),
        budget_(budget),
        heartbeat_(heartbeat),
        clock_(clock) {}
  /// REQUIRES: it is called once.
  Result<OpenedModel> Open();

 private:
  Result<checkpoint::ModelSource> OpenSource(const std::string& url);
  /// Makes the weights a folder of this machine whose blocks are quantized, if the options say so.
  Status QuantizeBase();
  /// Warns of weights in model.from that the model leaves out, and fails if it must not.
  Status NameWhatIsUnused();
  /// Opens the adapter to start from. Its configuration says which layers have adapters, and of which kind.
  Status OpenAdapter();

  object::Connection& connection_;
  engine::Collective& group_;
  const Options& options_;
  const tokenizer::Tokenizer& tokenizer_;
  MemoryBudget& budget_;
  Heartbeat& heartbeat_;
  Clock& clock_;
  OpenedModel opened_;
};

/// All ranks open the same: another checkpoint may be committed there meanwhile.
Result<checkpoint::ModelSource> ModelOpening::OpenSource(const std::string& url) {
  const auto open = [&](std::optional<std::uint64_t> step) {
    return checkpoint::ModelSource::Open(connection_, url, step, options_.log);
  };
  constexpr std::int64_t kFolder = -1;
  const at::Tensor step = at::scalar_tensor(kFolder, at::kLong);
  std::optional<checkpoint::ModelSource> source;
  if (group_.rank() == 0) {
    source = MR_TRY(open(std::nullopt));
    if (source->step()) step.fill_(static_cast<std::int64_t>(*source->step()));
  }
  MR_TRY(group_.Broadcast(step, 0));
  if (source) return *std::move(source);
  const auto chosen = step.item<std::int64_t>();
  return open(chosen == kFolder ? std::nullopt : std::optional(static_cast<std::uint64_t>(chosen)));
}

Result<OpenedModel> ModelOpening::Open() {
  Json json = options_.model_config;
  opened_.config_name = "model.config";
  if (!options_.model_url.empty()) {
    opened_.weights = MR_TRY(OpenSource(options_.model_url));
    const Json* stored = JsonFind(opened_.weights->reader().manifest().meta, checkpoint::kMetaModelConfig);
    if (stored == nullptr) {
      return Fail(Code::kNotFound, "{} has no config.json; copy that of the model there, or name another model.from",
                  options_.model_url);
    }
    json = *stored;
    opened_.config_name = options_.model_url + "/config.json";
    constexpr std::uint64_t kMaxBytes = 1 * kMiB;  // a guess: such files have some hundred bytes
    const auto generation = MR_TRY(opened_.weights->File(checkpoint::kGenerationConfigFile, kMaxBytes));
    if (generation) opened_.generation_config = MR_TRY(ParseJson(*generation, options_.model_url));
    MR_TRY(QuantizeBase());
    json.erase("quantization_config");  // it describes the files, not the model
  } else if (const Json* size = JsonFind(json, "vocab_size"); size == nullptr || *size == 0) {
    json["vocab_size"] = tokenizer_.vocab_size();
  }
  const data::DatasetOptions& data = options_.data;
  const bool compares = data.objective == data::Objective::kDpo;  // by the head that predicts tokens
  engine::SetHeads(json, {.tokens = data.LearnsTokens() || compares, .rows = data.LearnsRows() && !compares},
                   options_.classes);
  if (!options_.model_url.empty()) opened_.stored_config = json;
  opened_.config = MR_TRY(engine::ParseModelConfig(json, opened_.config_name));
  if (opened_.weights && group_.rank() == 0) MR_TRY(NameWhatIsUnused());
  MR_TRY(OpenAdapter());
  opened_.shape = TrainedShape(options_, *opened_.config, opened_.lora);
  return std::move(opened_);
}

Status ModelOpening::QuantizeBase() {
  const Json& config = *JsonFind(opened_.weights->reader().manifest().meta, checkpoint::kMetaModelConfig);
  const auto stored = MR_TRY(checkpoint::StoredQuantization(config, options_.model_url));
  if (!options_.base_quantization) {
    if (!stored) return {};
    return Fail(Code::kInvalidArgument,
                "model.from: the weights of {} are quantized as {}; train adapters over them: {}", options_.model_url,
                QuantizationName(*stored), "lora: {base: " + std::string(QuantizationName(*stored)) + "}");
  }
  const HeartbeatScope beating(heartbeat_, std::nullopt, clock_);  // it may take minutes
  const std::filesystem::path cache =
      options_.quantized_folder.empty() ? MR_TRY(checkpoint::DefaultQuantizedFolder()) : options_.quantized_folder;
  auto model = MR_TRY(checkpoint::OpenQuantizedModel(connection_, *opened_.weights, *options_.base_quantization, cache,
                                                     budget_, options_.log));
  opened_.quantized = std::move(model.weights);
  opened_.weights =
      MR_TRY(checkpoint::ModelSource::Open(connection_, model.folder.string(), std::nullopt, options_.log));
  return {};
}

Status ModelOpening::NameWhatIsUnused() {
  if (const std::string note = engine::UnknownMembersNote(opened_.stored_config); !note.empty()) {
    options_.log.Warning(note, {{"model.from", options_.model_url}});
  }
  const auto unused =
      MR_TRY(engine::UnusedWeights(opened_.weights->reader(), *opened_.config, opened_.quantized.get()));
  for (const std::string& name : unused) {
    options_.log.Warning("the model has no place for a weight of model.from; it is left out", {{"weight", name}});
  }
  return {};
}

Status ModelOpening::OpenAdapter() {
  opened_.lora = options_.lora;
  if (!opened_.lora || options_.adapter_url.empty()) return {};
  opened_.adapter = MR_TRY(OpenSource(options_.adapter_url));
  const auto config = MR_TRY(opened_.adapter->AdapterConfig());
  if (!config) return Fail(Code::kNotFound, "lora.adapter: {} has no adapter_config.json", options_.adapter_url);
  opened_.lora = MR_TRY(engine::ReadPeftConfig(*config, options_.adapter_url + "/adapter_config.json"));
  opened_.lora->dropout = options_.lora->dropout;
  MR_TRY(engine::FindWhole(opened_.adapter->reader(), *opened_.config, *opened_.lora));
  if (options_.data.objective == data::Objective::kDpo && !opened_.lora->whole.empty()) {
    return Fail(Code::kUnsupported,
                "lora.adapter: {} has {} whole; train.objective dpo compares with the model without its adapter, whose "
                "weights such an adapter replaces",
                options_.adapter_url, opened_.lora->whole.front());
  }
  return {};
}

}  // namespace

Result<OpenedModel> OpenModel(object::Connection& connection, engine::Collective& group, const Options& options,
                              const tokenizer::Tokenizer& tokenizer, MemoryBudget& budget, Heartbeat& heartbeat,
                              Clock& clock) {
  return ModelOpening(connection, group, options, tokenizer, budget, heartbeat, clock).Open();
}

Status CheckModel(const OpenedModel& opened, const Options& options, const tokenizer::Tokenizer& tokenizer,
                  const RankLayout& layout) {
  const engine::ModelConfig& config = *opened.config;
  const data::Objective objective = options.data.objective;
  const bool fits = !options.data.IsForBert()            ? config.generates()
                    : objective == data::Objective::kMlm ? config.predicts_tokens() && !config.generates()
                                                         : config.predicts_rows() && !config.predicts_tokens();
  if (!fits) {
    return Fail(Code::kInvalidArgument, "{}: a {} model does not learn train.objective {}{}", opened.config_name,
                config.family(), data::ObjectiveName(objective),
                config.generates() ? "; causal_lm is its" : ": its architectures name other heads");
  }
  // Rows are made by the tokenizer's tokens, and a BERT judges a row by its [CLS].
  if (objective == data::Objective::kClassification && !engine::FindFamily(config.family())->causal) {
    MR_TRY(data::BertTokens::Find(tokenizer));
  }
  const engine::ModelSizes sizes = config.sizes();
  if (sizes.vocab_size < tokenizer.vocab_size()) {
    return Fail(Code::kInvalidArgument,
                "the model has {} tokens, the tokenizer {} makes {}; set model.config.vocab_size", sizes.vocab_size,
                options.tokenizer_url, tokenizer.vocab_size());
  }
  if (sizes.max_positions < options.data.LongestDocument()) {
    return Fail(Code::kInvalidArgument,
                "sequences of {} tokens are longer than the model's {} positions; lower data.sequence_length",
                options.data.LongestDocument(), sizes.max_positions);
  }
  const std::int64_t stages = std::int64_t{layout.pipeline_ranks()} * layout.options().virtual_stages;
  if (sizes.num_layers < stages) {
    return Fail(Code::kInvalidArgument,
                "the model has {} blocks, fewer than the {} stages of train.parallel: pipeline {} × virtual_stages {}",
                sizes.num_layers, stages, layout.pipeline_ranks(), layout.options().virtual_stages);
  }
  return {};
}

Json AdapterConfig(const OpenedModel& opened, const Options& options) {
  if (!opened.lora) return nullptr;
  const engine::ModelConfig& config = *opened.config;
  const bool classifies = options.data.objective == data::Objective::kClassification;
  engine::PeftFacts facts{.base = options.model_url,
                          .task = classifies           ? "SEQ_CLS"
                                  : config.generates() ? "CAUSAL_LM"
                                                       : "",
                          .transposed = !engine::TransposedWeights(config).empty()};
  if (classifies) facts.whole = {std::string(config.class_layer())};
  for (const std::string& parameter : opened.lora->whole) {
    const std::string module = parameter.substr(0, parameter.rfind('.'));
    if (std::ranges::find(facts.whole, module) == facts.whole.end()) facts.whole.push_back(module);
  }
  return engine::PeftConfig(*opened.lora, facts);
}

}  // namespace millrace::train
