// From a URL to a model that can be served.
#include <ATen/ATen.h>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
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
Status CheckAdapted(const checkpoint::ModelSource& adapter, engine::Model& model, std::string_view base) {
  const Json& meta = adapter.reader().manifest().meta;
  const Json *train = JsonFind(meta, "train"), *config = JsonFind(meta, checkpoint::kMetaModelConfig);
  if (train == nullptr || config == nullptr) return {};
  const bool is_float = model.buffer().dtype() == at::kFloat;
  const std::string fingerprint = JsonString(*train, "base_fingerprint").value_or("");
  if (fingerprint.empty() || JsonString(*config, "torch_dtype").value_or("") != (is_float ? "float32" : "bfloat16")) {
    return {};
  }
  const std::uint64_t found = MR_TRY(engine::FrozenFingerprint(model.buffer(), {}));
  if (fmt::format("{:016x}", found) == fingerprint) return {};
  return Fail(Code::kPreconditionFailed, "{} adapts a model with other weights than those of {}", adapter.name(), base);
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
  const checkpoint::ModelSource& weights = base ? *base : source;
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) stored = JsonFind(weights.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kCorrupt, "{} does not say what model it holds (no config.json)", name);
  auto config = MR_TRY(engine::ParseModelConfig(*stored, name));
  if (!config->generates()) {
    return Fail(Code::kUnsupported, "{} is a {} model, which does not generate text", name, config->family());
  }
  const checkpoint::ModelSource& described = Trained(source) != nullptr ? source : weights;
  auto tokenizer = MR_TRY(LoadTokenizer(connection, described, options, log, call));
  if (tokenizer->vocab_size() > config->sizes().vocab_size) {
    return Fail(Code::kPreconditionFailed, "the tokenizer has {} tokens, the model at {} only {}",
                tokenizer->vocab_size(), name, config->sizes().vocab_size);
  }
  bool add_bos = MR_TRY(AddsBos(described, *tokenizer, call));
  auto type = options.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  auto model = MR_TRY(engine::MakeModel(config, type, at::kCPU, /*seed=*/0, std::move(share)));
  MR_TRY(engine::ReadWeights(weights.reader(), *model, nullptr, call));
  if (base) {
    MR_TRY(CheckAdapted(source, *model, base->name()));
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
