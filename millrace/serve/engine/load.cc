// From a URL to a model that can be served.
#include <ATen/ATen.h>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/convert/mapped/quantized_model.h"
#include "millrace/checkpoint/convert/quantized/bitsandbytes_names.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/adapters/peft_config.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/serve/engine/engine_model.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::serve {
namespace {

/// What quantizing a model may take while it streams. A guess: parts of its reads and writes have some MiB.
constexpr std::uint64_t kQuantizingBytes = 256 * kMiB;

constexpr std::uint64_t kMaxConfigBytes = 1 * kMiB;

using TokenizerPointer = std::shared_ptr<const tokenizer::Tokenizer>;

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

/// Checks that the weights are those that a run adapted. Nothing is known of other programs' adapters, or of weights in
/// another precision.
Status CheckAdapted(const checkpoint::ModelSource& adapter, engine::Model& model,
                    const engine::QuantizedWeights* quantized, std::string_view base) {
  const Json& meta = adapter.reader().manifest().meta;
  const Json *train = JsonFind(meta, "train"), *config = JsonFind(meta, checkpoint::kMetaModelConfig);
  if (train == nullptr || config == nullptr) return {};
  const bool is_float = model.buffer().dtype() == at::kFloat;
  const std::string fingerprint = JsonString(*train, "base_fingerprint").value_or("");
  if (fingerprint.empty() || JsonString(*config, "torch_dtype").value_or("") != (is_float ? "float32" : "bfloat16")) {
    return {};
  }
  const std::uint64_t found = MR_TRY(engine::FrozenFingerprint(model.buffer(), {})) +
                              (quantized != nullptr ? engine::Fingerprint(*quantized) : 0);
  if (fmt::format("{:016x}", found) == fingerprint) return {};
  return Fail(Code::kPreconditionFailed, "{} adapts a model with other weights than those of {}", adapter.name(), base);
}

/// Returns how the weights are to be quantized: as they are stored, or as they were while an adapter was trained over
/// them.
Result<std::optional<engine::Quantization>> QuantizationOf(const checkpoint::ModelSource& source,
                                                           const checkpoint::ModelSource& weights) {
  const Json& meta = weights.reader().manifest().meta;
  const Json* config = JsonFind(meta, checkpoint::kMetaModelConfig);
  if (config != nullptr) {
    if (const auto stored = MR_TRY(checkpoint::StoredQuantization(*config, weights.name()))) return stored;
  }
  return checkpoint::QuantizedWhileTraining(source.reader().manifest());
}

}  // namespace

Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call) {
  const auto source = MR_TRY(checkpoint::ModelSource::Open(connection, options.model_url, options.step, log, call));
  const std::string& name = source.name();
  engine::ModelShare share;
  std::optional<checkpoint::ModelSource> base;  // of an adapter
  if (const auto adapter = MR_TRY(source.AdapterConfig(call))) {
    share.lora = MR_TRY(engine::ReadPeftConfig(*adapter, name + "/adapter_config.json"));
    const std::string from = MR_TRY(JsonString(*adapter, "base_model_name_or_path"));
    base = MR_TRY(checkpoint::ModelSource::Open(connection, from, std::nullopt, log, call));
  }
  std::optional<checkpoint::ModelSource> local;  // where the weights are quantized
  if (const auto kind = MR_TRY(QuantizationOf(source, base ? *base : source))) {
    MemoryBudget budget(kQuantizingBytes);
    const auto cache = MR_TRY(checkpoint::DefaultQuantizedFolder());
    auto quantized =
        MR_TRY(checkpoint::OpenQuantizedModel(connection, base ? *base : source, *kind, cache, budget, log, call));
    share.quantized = std::move(quantized.weights);
    local = MR_TRY(checkpoint::ModelSource::Open(connection, quantized.folder.string(), std::nullopt, log, call));
  }
  const checkpoint::ModelSource& weights = local ? *local : base ? *base : source;
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) stored = JsonFind(weights.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kCorrupt, "{} does not say what model it holds (no config.json)", name);
  auto config = MR_TRY(engine::ParseModelConfig(*stored, name));
  if (!config->generates()) {
    return Fail(Code::kUnsupported, "{} is a {} model, which does not generate text", name, config->family());
  }
  const checkpoint::ModelSource& described = Trained(source) != nullptr || !base ? source : *base;
  auto tokenizer = MR_TRY(LoadTokenizer(connection, described, options, log, call));
  if (tokenizer->vocab_size() > config->sizes().vocab_size) {
    return Fail(Code::kPreconditionFailed, "the tokenizer has {} tokens, the model at {} only {}",
                tokenizer->vocab_size(), name, config->sizes().vocab_size);
  }
  bool add_bos = MR_TRY(AddsBos(described, *tokenizer, call));
  auto type = options.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  auto model = MR_TRY(engine::MakeModel(config, type, at::kCPU, /*seed=*/0, share));
  MR_TRY(engine::ReadWeights(weights.reader(), *model, nullptr, call));
  if (base) {
    MR_TRY(CheckAdapted(source, *model, share.quantized.get(), base->name()));
    MR_TRY(engine::ReadAdapter(source.reader(), *model, call));
  }
  log.Info("model loaded",
           {{"from", name}, {"parameters", config->ParameterCount()}, {"precision", options.precision}});
  return LoadedModel{.model = MakeEngineModel(std::move(model), tokenizer->vocab_size()),
                     .tokenizer = tokenizer,
                     .source = name,
                     .parameters = config->ParameterCount(),
                     .add_bos = add_bos};
}

}  // namespace millrace::serve
