// From a URL to a model that can be served.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/convert/model_archive.h"
#include "millrace/checkpoint/convert/quantized_model.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/config/config_members.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/weights/adapter_weights.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/engine/weights/unused_weights.h"
#include "millrace/engine/weights/weight_names.h"
#include "millrace/serve/chat/model_chat.h"
#include "millrace/serve/engine/engine_adapter.h"
#include "millrace/serve/engine/engine_model.h"
#include "millrace/serve/engine/pooling.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::serve {
namespace {

/// What quantizing a model may take while it streams. A guess: parts of its reads and writes have some MiB.
constexpr std::uint64_t kQuantizingBytes = 256 * kMiB;

constexpr std::uint64_t kMaxConfigBytes = 1 * kMiB;

using TokenizerPointer = std::shared_ptr<const tokenizer::Tokenizer>;

/// Returns the most that a model's archive may unpack to: half of the machine's memory, whose other half is the
/// model's.
std::uint64_t MostArchiveBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return static_cast<std::uint64_t>(std::max(pages, 1L)) * static_cast<std::uint64_t>(std::max(page_bytes, 1L)) / 2;
}

Result<checkpoint::ModelSource> OpenModel(object::Connection& connection, std::string_view url,
                                          std::optional<std::uint64_t> step, const Logger& log,
                                          const object::Call& call) {
  if (!checkpoint::IsModelArchive(url)) return checkpoint::ModelSource::Open(connection, url, step, log, call);
  if (step) return Fail(Code::kInvalidArgument, "{} is an archive, which has no steps: leave --step out", url);
  return checkpoint::OpenModelArchive(connection, url, MostArchiveBytes(), log, call);
}

/// What our own training wrote about the tokenizer; null for models of others.
const Json* Trained(const checkpoint::ModelSource& source) {
  return JsonFind(source.reader().manifest().meta, "tokenizer");
}

/// The one that the user named, or that the model was trained with, or that came with it.
Result<TokenizerPointer> LoadTokenizer(object::Connection& connection, const checkpoint::ModelSource& source,
                                       const LoadOptions& options, const Logger& log, const object::Call& call) {
  const Json* trained = Trained(source);
  const std::string fingerprint = trained ? JsonString(*trained, "fingerprint").value_or("") : "";
  std::string url = options.tokenizer_url;
  if (url.empty() && trained) url = JsonString(*trained, "url").value_or("");
  auto opened = url.empty() ? tokenizer::OpenModelTokenizer(source, log, call)
                            : tokenizer::OpenTokenizer(connection, url, log, call);
  if (!opened) return Fail(opened.error().code(), "{}; give another with --tokenizer", opened.error().ToString());
  if (!fingerprint.empty() && (*opened)->fingerprint() != fingerprint) {
    return Fail(Code::kPreconditionFailed,
                "the tokenizer at {} ({}) is not the one that {} was trained with ({}); give that one with --tokenizer",
                url, (*opened)->fingerprint(), source.name(), fingerprint);
  }
  return opened;
}

/// Whether prompts begin with the beginning-of-text token: our own training data do not, and of models of others the
/// configuration says it, else the tokenizer's file; Llama's do where neither does.
Result<bool> AddsBos(const checkpoint::ModelSource& source, const tokenizer::Tokenizer& tokenizer,
                     const object::Call& call) {
  if (Trained(source)) return false;
  constexpr std::string_view kFile = "tokenizer_config.json";
  if (const auto text = MR_TRY(source.File(kFile, kMaxConfigBytes, call))) {
    const Json config = MR_TRY(ParseJson(*text, fmt::format("{}/{}", source.name(), kFile)));
    if (const Json* add = JsonFind(config, "add_bos_token"); add != nullptr && add->is_boolean())
      return add->get<bool>();
  }
  return tokenizer.adds_bos().value_or(true);
}

/// Checks that the model has a place for all weights. Warns of those that it leaves out, and of members of its
/// config.json that are not known.
Status CheckAllUsed(const checkpoint::ModelSource& weights, const engine::ModelConfig& config,
                    const engine::QuantizedWeights* quantized, const Logger& log, const object::Call& call) {
  if (const Json* json = JsonFind(weights.reader().manifest().meta, checkpoint::kMetaModelConfig)) {
    const std::string note = engine::UnknownMembersNote(*json);
    if (!note.empty()) log.Warning(note, {{"model", weights.name()}});
  }
  const auto unused = MR_TRY(engine::UnusedWeights(weights.reader(), config, quantized, call));
  if (unused.empty()) return {};
  log.Warning("weights of the model's files are not used", {{"weights", fmt::format("{}", fmt::join(unused, ", "))}});
  return {};
}

/// What a served model has in place of full weights.
struct Codes {
  std::optional<engine::Quantization> kind;  ///< nothing: it has full weights
  std::shared_ptr<const engine::QuantizedWeights> weights;
};

/// Checks that the weights are those that a run adapted. Nothing is known of other programs' adapters, or of weights in
/// another precision or quantized in another way.
Status CheckAdapted(const checkpoint::ModelSource& adapter, engine::Model& model, const Codes& codes,
                    std::string_view base) {
  const Json& meta = adapter.reader().manifest().meta;
  const Json *train = JsonFind(meta, "train"), *config = JsonFind(meta, checkpoint::kMetaModelConfig);
  if (train == nullptr || config == nullptr) return {};
  const at::ScalarType type = model.buffer().dtype();
  const std::string_view dtype = type == at::kFloat ? "float32" : type == at::kHalf ? "float16" : "bfloat16";
  const std::string fingerprint = JsonString(*train, "base_fingerprint").value_or("");
  if (fingerprint.empty() || JsonString(*config, "torch_dtype").value_or("") != dtype ||
      checkpoint::QuantizedWhileTraining(adapter.reader().manifest()) != codes.kind) {
    return {};
  }
  const std::uint64_t found =
      MR_TRY(engine::FrozenFingerprint(model.buffer(), {})) + (codes.weights ? engine::Fingerprint(*codes.weights) : 0);
  if (fmt::format("{:016x}", found) == fingerprint) return {};
  return Fail(Code::kPreconditionFailed,
              "{} adapts a model with other weights than those of {}; use the base model that it was trained on",
              adapter.name(), base);
}

/// What adapters of a served model are loaded over. Borrows the model, which the LanguageModel owns.
struct AdapterBase {
  object::Connection& connection;
  engine::Model& model;
  Codes codes;
  TokenizerPointer tokenizer;
  std::string name;
  Logger log;
};

Result<std::shared_ptr<const Adapter>> LoadAdapterOver(const AdapterBase& base, const std::string& url,
                                                       const ReserveMemory& reserve, const object::Call& call) {
  const auto source = MR_TRY(checkpoint::ModelSource::Open(base.connection, url, std::nullopt, base.log, call));
  const auto config = MR_TRY(source.AdapterConfig(call));
  if (!config) {
    return Fail(Code::kUnsupported, "{} is no adapter: it has no adapter_config.json; serve it by itself",
                source.name());
  }
  const auto options = MR_TRY(engine::ReadPeftConfig(*config, source.name() + "/adapter_config.json"));
  MR_TRY(CheckAdapted(source, base.model, base.codes, base.name));
  std::optional<bool> add_bos;
  if (const Json* trained = Trained(source)) {
    add_bos = false;
    const std::string fingerprint = JsonString(*trained, "fingerprint").value_or("");
    if (!fingerprint.empty() && fingerprint != base.tokenizer->fingerprint()) {
      return Fail(
          Code::kPreconditionFailed,
          "{} was trained with another tokenizer ({}) than that of {} ({}); use the base model that it was trained on",
          source.name(), fingerprint, base.name, base.tokenizer->fingerprint());
    }
  }
  auto weights = MR_TRY(engine::ReadAdapterWeights(source.reader(), base.model, options, reserve, call));
  return std::make_shared<const EngineAdapter>(std::move(weights), add_bos);
}

/// Returns how the weights are to be quantized: as the user wants, or as they are stored, or as they were while an
/// adapter was trained over them.
Result<std::optional<engine::Quantization>> QuantizationOf(const std::string& wanted,
                                                           const checkpoint::ModelSource& source,
                                                           const checkpoint::ModelSource& weights) {
  const Json& meta = weights.reader().manifest().meta;
  const Json* config = JsonFind(meta, checkpoint::kMetaModelConfig);
  if (config != nullptr) {
    if (const auto stored = MR_TRY(checkpoint::StoredQuantization(*config, weights.name()))) {
      if (wanted.empty() || wanted == engine::QuantizationName(*stored)) return stored;
      return Fail(Code::kInvalidArgument, "{} has its weights in {}; serve it with --weights {}, or leave that out",
                  weights.name(), engine::QuantizationName(*stored), engine::QuantizationName(*stored));
    }
  }
  if (!wanted.empty()) return engine::ParseQuantization(wanted);
  return checkpoint::QuantizedWhileTraining(source.reader().manifest());
}

/// The files of a model, and what its layers get from them.
struct ModelFiles {
  checkpoint::ModelSource source;
  std::optional<checkpoint::ModelSource> base = {};  ///< of an adapter
  std::optional<engine::Quantization> kind = {};     ///< nothing: the model has full weights
  checkpoint::QuantizedModel quantized = {};
  std::optional<checkpoint::ModelSource> local = {};  ///< where the weights are quantized
  engine::ModelShare share = {.initial_values = engine::InitialValues::kNone};

  const checkpoint::ModelSource& stored() const { return base ? *base : source; }
  const checkpoint::ModelSource& weights() const { return local ? *local : stored(); }
  /// What says which tokenizer the model takes, and how its texts are made.
  const checkpoint::ModelSource& described() const { return Trained(source) != nullptr ? source : stored(); }
};

/// Opens a model, the base of an adapter, and the quantized weights, which it makes if they are not there.
Result<ModelFiles> OpenFiles(object::Connection& connection, const LoadOptions& options, const Logger& log,
                             const object::Call& call) {
  ModelFiles files{.source = MR_TRY(OpenModel(connection, options.model_url, options.step, log, call))};
  if (const auto adapter = MR_TRY(files.source.AdapterConfig(call))) {
    files.share.lora = MR_TRY(engine::ReadPeftConfig(*adapter, files.source.name() + "/adapter_config.json"));
    const std::string from = MR_TRY(JsonString(*adapter, "base_model_name_or_path"));
    files.base = MR_TRY(OpenModel(connection, from, std::nullopt, log, call));
  } else {
    files.share.freeze = {"*"};  // FrozenFingerprint() is of all weights, as it is of an adapter's base
  }
  files.kind = MR_TRY(QuantizationOf(options.weights, files.source, files.stored()));
  if (!files.kind) return files;
  MemoryBudget budget(kQuantizingBytes);
  const auto cache = MR_TRY(checkpoint::DefaultQuantizedFolder());
  // The base of a run's adapters stays the same.
  const bool replaced = options.is_followed && !files.base;
  const auto open = replaced ? checkpoint::QuantizeForOneLoad : checkpoint::OpenQuantizedModel;
  files.quantized = MR_TRY(open(connection, files.stored(), *files.kind, cache, budget, log, call));
  files.share.quantized = std::move(files.quantized.weights);
  files.local =
      MR_TRY(checkpoint::ModelSource::Open(connection, files.quantized.folder.string(), std::nullopt, log, call));
  return files;
}

Result<std::shared_ptr<const engine::ModelConfig>> ReadConfig(const ModelFiles& files) {
  const std::string& name = files.source.name();
  const Json* stored = JsonFind(files.source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) stored = JsonFind(files.weights().reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kCorrupt, "{} does not say what model it holds (no config.json)", name);
  return MR_TRY(engine::ParseModelConfig(*stored, name));
}

/// Returns what is known of a model without its weights: all but `model`, `device` and `load_adapter`.
Result<LoadedModel> DescribeModel(object::Connection& connection, const LoadOptions& options, const ModelFiles& files,
                                  const engine::ModelConfig& config, const Logger& log, const object::Call& call) {
  const checkpoint::ModelSource& described = files.described();
  const std::string& name = files.source.name();
  LoadedModel loaded{.tokenizer = MR_TRY(LoadTokenizer(connection, described, options, log, call))};
  const tokenizer::Tokenizer& tokenizer = *loaded.tokenizer;
  if (tokenizer.vocab_size() > config.sizes().vocab_size) {
    return Fail(Code::kPreconditionFailed, "the tokenizer has {} tokens, the model at {} only {}",
                tokenizer.vocab_size(), name, config.sizes().vocab_size);
  }
  loaded.source = checkpoint::IsModelArchive(options.model_url) ? options.model_url : name;
  loaded.step = files.source.step();
  loaded.parameters = config.ParameterCount();
  loaded.generates = config.generates();
  loaded.add_bos = MR_TRY(AddsBos(described, tokenizer, call));
  // An encoder sees whole texts with both of their marks, ours too.
  const bool encodes = !engine::FindFamily(config.family())->causal;
  loaded.embeds_bos = encodes || loaded.add_bos;
  loaded.embeds_eos = encodes || (Trained(files.source) == nullptr && MR_TRY(PostProcessorEndsTexts(described, call)));
  loaded.ends = MR_TRY(ReadEndTokens(described, tokenizer, call));
  loaded.chat = MR_TRY(ReadChatTemplate(described, tokenizer, call));
  return loaded;
}

/// Makes a model and reads its weights, and its adapter's.
Result<std::unique_ptr<engine::Model>> ReadModel(const ModelFiles& files,
                                                 const std::shared_ptr<const engine::ModelConfig>& config,
                                                 at::ScalarType type, at::Device device, const Logger& log,
                                                 const object::Call& call) {
  engine::ModelShare share = files.share;
  if (files.base) MR_TRY(engine::FindWhole(files.source.reader(), *config, *share.lora));
  MR_TRY(CheckAllUsed(files.weights(), *config, share.quantized.get(), log, call));
  auto model = MR_TRY(engine::MakeModel(config, type, device, /*seed=*/0, share));
  MR_TRY(engine::ReadWeights(files.weights().reader(), *model, nullptr, call));
  if (!files.base) return model;
  MR_TRY(CheckAdapted(files.source, *model, {files.kind, share.quantized}, files.base->name()));
  MR_TRY(engine::ReadAdapter(files.source.reader(), *model, call));
  return model;
}

}  // namespace

Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call) {
  const bool wants_codes = engine::ParseQuantization(options.weights).has_value();
  const std::string precision_name = options.weights.empty() || wants_codes ? options.precision : options.weights;
  const engine::Precision precision = MR_TRY(engine::ParsePrecision(precision_name));
  const at::Device device = MR_TRY(engine::ChooseDevice(options.device, /*local_rank=*/0, precision));
  MR_TRY(engine::CheckPrecision("--precision", precision, device));
  const ModelFiles files = MR_TRY(OpenFiles(connection, options, log, call));
  const auto config = MR_TRY(ReadConfig(files));
  LoadedModel loaded = MR_TRY(DescribeModel(connection, options, files, *config, log, call));
  loaded.device = device.str();
  Pooling pooling = MR_TRY(ReadPooling(files.described(), call));
  auto model = MR_TRY(ReadModel(files, config, precision.type, device, log, call));
  if (wants_codes) MR_TRY(engine::CatchTorch("quantizing the weights", [&] { model->QuantizeHead(); }));
  engine::Model& made = *model;
  loaded.model = MR_TRY(MakeEngineModel(std::move(model), loaded.tokenizer->vocab_size(), options.kv_cache_bytes,
                                        options.kv_cache_dtype == "int8", std::move(pooling)));
  const std::string& name = files.source.name();
  log.Info("model loaded", {{"from", name},
                            {"parameters", loaded.parameters},
                            {"precision", precision_name},
                            {"weights", wants_codes ? options.weights : precision_name},
                            {"device", loaded.device},
                            {"cached_tokens", loaded.model->cache().tokens()}});
  if (files.base) return loaded;
  loaded.load_adapter =
      [over = AdapterBase{connection, made, {files.kind, files.share.quantized}, loaded.tokenizer, name, log}](
          const std::string& url, const ReserveMemory& reserve, const object::Call& adapter_call) {
        return LoadAdapterOver(over, url, reserve, adapter_call);
      };
  return loaded;
}

}  // namespace millrace::serve
