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
    return Fail(Code::kPreconditionFailed, "the tokenizer at {} ({}) is not the one that {} was trained with ({})", url,
                (*opened)->fingerprint(), source.name(), fingerprint);
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

/// Checks that the model has a place for all weights. Warns of those that it leaves out.
Status CheckAllUsed(const checkpoint::ModelSource& weights, const engine::ModelConfig& config,
                    const engine::QuantizedWeights* quantized, const Logger& log, const object::Call& call) {
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
  return Fail(Code::kPreconditionFailed, "{} adapts a model with other weights than those of {}", adapter.name(), base);
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
      return Fail(Code::kPreconditionFailed, "{} was trained with another tokenizer ({}) than that of {} ({})",
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

}  // namespace

Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call) {
  const bool wants_codes = engine::ParseQuantization(options.weights).has_value();
  const std::string precision_name = options.weights.empty() || wants_codes ? options.precision : options.weights;
  const engine::Precision precision = MR_TRY(engine::ParsePrecision(precision_name));
  const at::Device device = MR_TRY(engine::ChooseDevice(options.device, /*local_rank=*/0, precision));
  MR_TRY(engine::CheckPrecision("--precision", precision, device));
  const auto source = MR_TRY(OpenModel(connection, options.model_url, options.step, log, call));
  const std::string& name = source.name();
  engine::ModelShare share{.initial_values = engine::InitialValues::kNone};
  std::optional<checkpoint::ModelSource> base;  // of an adapter
  if (const auto adapter = MR_TRY(source.AdapterConfig(call))) {
    share.lora = MR_TRY(engine::ReadPeftConfig(*adapter, name + "/adapter_config.json"));
    const std::string from = MR_TRY(JsonString(*adapter, "base_model_name_or_path"));
    base = MR_TRY(OpenModel(connection, from, std::nullopt, log, call));
  } else {
    share.freeze = {"*"};  // FrozenFingerprint() is of all weights, as it is of an adapter's base
  }
  checkpoint::QuantizedModel quantized;
  std::optional<checkpoint::ModelSource> local;  // where the weights are quantized
  const auto kind = MR_TRY(QuantizationOf(options.weights, source, base ? *base : source));
  if (kind) {
    MemoryBudget budget(kQuantizingBytes);
    const auto cache = MR_TRY(checkpoint::DefaultQuantizedFolder());
    // The base of a run's adapters stays the same.
    const bool replaced = options.is_followed && !base;
    const auto open = replaced ? checkpoint::QuantizeForOneLoad : checkpoint::OpenQuantizedModel;
    quantized = MR_TRY(open(connection, base ? *base : source, *kind, cache, budget, log, call));
    share.quantized = std::move(quantized.weights);
    local = MR_TRY(checkpoint::ModelSource::Open(connection, quantized.folder.string(), std::nullopt, log, call));
  }
  const checkpoint::ModelSource& weights = local ? *local : base ? *base : source;
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) stored = JsonFind(weights.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kCorrupt, "{} does not say what model it holds (no config.json)", name);
  auto config = MR_TRY(engine::ParseModelConfig(*stored, name));
  const checkpoint::ModelSource& described = Trained(source) != nullptr || !base ? source : *base;
  auto tokenizer = MR_TRY(LoadTokenizer(connection, described, options, log, call));
  if (tokenizer->vocab_size() > config->sizes().vocab_size) {
    return Fail(Code::kPreconditionFailed, "the tokenizer has {} tokens, the model at {} only {}",
                tokenizer->vocab_size(), name, config->sizes().vocab_size);
  }
  bool add_bos = MR_TRY(AddsBos(described, *tokenizer, call));
  // An encoder sees whole texts with both of their marks, ours too.
  const bool encodes = !engine::FindFamily(config->family())->causal;
  Pooling pooling = MR_TRY(ReadPooling(described, call));
  const bool embeds_eos = encodes || (Trained(source) == nullptr && MR_TRY(PostProcessorEndsTexts(described, call)));
  auto ends = MR_TRY(ReadEndTokens(described, *tokenizer, call));
  auto chat = MR_TRY(ReadChatTemplate(described, *tokenizer, call));
  if (base) MR_TRY(engine::FindWhole(source.reader(), *config, *share.lora));
  MR_TRY(CheckAllUsed(weights, *config, share.quantized.get(), log, call));
  auto model = MR_TRY(engine::MakeModel(config, precision.type, device, /*seed=*/0, share));
  MR_TRY(engine::ReadWeights(weights.reader(), *model, nullptr, call));
  if (base) {
    MR_TRY(CheckAdapted(source, *model, {kind, share.quantized}, base->name()));
    MR_TRY(engine::ReadAdapter(source.reader(), *model, call));
  }
  if (wants_codes) MR_TRY(engine::CatchTorch("quantizing the weights", [&] { model->QuantizeHead(); }));
  engine::Model& made = *model;
  auto served = MR_TRY(MakeEngineModel(std::move(model), tokenizer->vocab_size(), options.kv_cache_bytes,
                                       options.kv_cache_dtype == "int8", std::move(pooling)));
  log.Info("model loaded", {{"from", name},
                            {"parameters", config->ParameterCount()},
                            {"precision", precision_name},
                            {"weights", wants_codes ? options.weights : precision_name},
                            {"device", device.str()},
                            {"cached_tokens", served->cache().tokens()}});
  LoadAdapter load_adapter;
  if (!base) {
    load_adapter = [over = AdapterBase{connection, made, {kind, share.quantized}, tokenizer, name, log}](
                       const std::string& url, const ReserveMemory& reserve, const object::Call& adapter_call) {
      return LoadAdapterOver(over, url, reserve, adapter_call);
    };
  }
  return LoadedModel{.model = std::move(served),
                     .tokenizer = tokenizer,
                     .source = checkpoint::IsModelArchive(options.model_url) ? options.model_url : name,
                     .step = source.step(),
                     .parameters = config->ParameterCount(),
                     .device = device.str(),
                     .generates = config->generates(),
                     .add_bos = add_bos,
                     .embeds_bos = encodes || add_bos,
                     .embeds_eos = embeds_eos,
                     .ends = std::move(ends),
                     .chat = std::move(chat),
                     .load_adapter = std::move(load_adapter)};
}

}  // namespace millrace::serve
