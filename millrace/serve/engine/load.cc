// From a URL to a model that can be served.
#include <ATen/ATen.h>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/engine/model.h"
#include "millrace/object/blocking.h"
#include "millrace/serve/engine/engine_model.h"

namespace millrace::serve {
namespace {

constexpr std::uint64_t kMaxTokenizerBytes = 256 * kMiB, kMaxConfigBytes = 1 * kMiB;
/// Weights whose type is converted pass through a buffer of about this size.
constexpr std::uint64_t kBatchBytes = 256 * kMiB;

struct Source {
  std::unique_ptr<checkpoint::Reader> reader;
  bool folder = false;  ///< a Hugging Face folder
};

std::string Join(std::string_view folder, std::string_view name) {
  return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

Result<Source> OpenSource(object::Connection& connection, const LoadOptions& options, const object::Call& call) {
  auto run = checkpoint::Reader::Open(connection, options.model_url, options.step, call);
  if (run) return Source{*std::move(run), false};
  if (run.error().code() != Code::kNotFound || options.step) return Fail(run.error());
  auto folder = checkpoint::OpenSafetensors(connection, options.model_url, call);
  if (folder) return Source{*std::move(folder), true};
  if (folder.error().code() != Code::kNotFound) return Fail(folder.error());
  return Fail(Code::kNotFound,
              "no model at {}: neither committed checkpoints (`millrace ckpt ls` shows them) nor *.safetensors files",
              options.model_url);
}

/// The small files beside a model; nothing when there is no such file.
Result<std::optional<std::string>> ReadSmall(object::Connection& connection, std::string_view url, std::uint64_t most,
                                             const object::Call& call) {
  auto location = MR_TRY(object::Locate(connection, url));
  auto content = MR_TRY(object::GetAll(*location.store, location.key, most, call));
  if (!content) return std::optional<std::string>();
  return std::move(content->bytes);
}

struct TokenizerChoice {
  std::string url, fingerprint;  ///< fingerprint: the one it must have; empty: any
};

TokenizerChoice ChooseTokenizer(const Source& source, const LoadOptions& options) {
  TokenizerChoice choice{.url = options.tokenizer_url, .fingerprint = {}};
  if (source.folder) {
    if (choice.url.empty()) choice.url = Join(options.model_url, "tokenizer.model");
    return choice;
  }
  const Json* trained = JsonFind(source.reader->manifest().meta, "tokenizer");
  if (trained == nullptr) return choice;
  choice.fingerprint = JsonString(*trained, "fingerprint").value_or("");
  if (choice.url.empty()) choice.url = JsonString(*trained, "url").value_or("");
  return choice;
}

Result<std::shared_ptr<const tokenizer::Tokenizer>> LoadTokenizer(object::Connection& connection, const Source& source,
                                                                  const LoadOptions& options,
                                                                  const object::Call& call) {
  auto [url, fingerprint] = ChooseTokenizer(source, options);
  if (url.empty())
    return Fail(Code::kInvalidArgument, "{} names no tokenizer; give one with --tokenizer", source.reader->name());
  auto bytes = MR_TRY(ReadSmall(connection, url, kMaxTokenizerBytes, call));
  if (!bytes) return Fail(Code::kNotFound, "no tokenizer at {}; give another with --tokenizer", url);
  auto loaded = MR_TRY(tokenizer::Load(AsBytes(*bytes), url));
  if (!fingerprint.empty() && loaded->fingerprint() != fingerprint) {
    return Fail(Code::kPreconditionFailed, "the tokenizer at {} ({}) is not the one that {} was trained with ({})", url,
                loaded->fingerprint(), source.reader->name(), fingerprint);
  }
  return loaded;
}

/// Llama's tokenizers begin texts with <s> unless their configuration says otherwise; our own training data do not.
Result<bool> AddsBos(object::Connection& connection, const Source& source, const LoadOptions& options,
                     const object::Call& call) {
  if (!source.folder) return false;
  std::string url = Join(options.model_url, "tokenizer_config.json");
  auto text = MR_TRY(ReadSmall(connection, url, kMaxConfigBytes, call));
  if (!text) return true;
  Json config = MR_TRY(ParseJson(*text, url));
  const Json* add = JsonFind(config, "add_bos_token");
  return add == nullptr || !add->is_boolean() || add->get<bool>();
}

/// One parameter's bytes as stored: read in place where the types agree, else through `stored`.
struct Pending {
  const engine::NamedParameter* parameter = nullptr;
  at::ScalarType type = at::kFloat;
  Buffer stored;
};

Status ReadBatch(checkpoint::Reader& reader, std::vector<Pending>& batch, const object::Call& call) {
  std::vector<checkpoint::Reader::Wanted> wanted;
  for (Pending& pending : batch) {
    auto into = pending.stored.empty() ? engine::BytesOf(pending.parameter->tensor) : pending.stored.span();
    wanted.push_back({.tensor = std::string(checkpoint::kModelGroup) + pending.parameter->name, .into = into});
  }
  MR_TRY(reader.ReadMany(wanted, 8, call));
  for (Pending& pending : batch) {
    if (!pending.stored.empty()) MR_TRY(engine::CopyInto(pending.parameter->tensor, pending.type, pending.stored));
  }
  batch.clear();
  return {};
}

Status ReadWeights(checkpoint::Reader& reader, engine::Model& model, const object::Call& call) {
  const auto& tensors = reader.manifest().tensors;
  std::vector<Pending> batch;
  std::uint64_t buffered = 0;
  for (const engine::NamedParameter& parameter : model.Parameters()) {
    auto found = tensors.find(std::string(checkpoint::kModelGroup) + parameter.name);
    if (found == tensors.end()) return Fail(Code::kNotFound, "{} has no weight {}", reader.name(), parameter.name);
    if (at::IntArrayRef(found->second.shape) != parameter.tensor.sizes()) {
      return Fail(Code::kCorrupt, "{}: the shape of {} is not what the model's sizes say", reader.name(),
                  parameter.name);
    }
    Pending pending{&parameter, MR_TRY(engine::ParseScalarType(checkpoint::DTypeName(found->second.dtype))), {}};
    if (pending.type != parameter.tensor.scalar_type()) {
      pending.stored = Buffer(found->second.bytes());
      buffered += pending.stored.size();
    }
    batch.push_back(std::move(pending));
    if (buffered < kBatchBytes) continue;
    MR_TRY(ReadBatch(reader, batch, call));
    buffered = 0;
  }
  return ReadBatch(reader, batch, call);
}

}  // namespace

Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call) {
  Source source = MR_TRY(OpenSource(connection, options, call));
  const std::string& name = source.reader->name();
  const Json* stored = JsonFind(source.reader->manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kCorrupt, "{} does not say what model it holds (no config.json)", name);
  auto config = MR_TRY(engine::ModelConfig::FromJson(*stored, name));
  auto tokenizer = MR_TRY(LoadTokenizer(connection, source, options, call));
  if (tokenizer->vocab_size() > config.vocab_size) {
    return Fail(Code::kPreconditionFailed, "the tokenizer has {} tokens, the model at {} only {}",
                tokenizer->vocab_size(), name, config.vocab_size);
  }
  bool add_bos = MR_TRY(AddsBos(connection, source, options, call));
  auto type = options.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  auto model = MR_TRY(engine::MakeModel(config, type, at::kCPU, /*seed=*/0));
  MR_TRY(ReadWeights(*source.reader, *model, call));
  log.Info("model loaded", {{"from", name}, {"parameters", config.ParameterCount()}, {"precision", options.precision}});
  return LoadedModel{.model = MakeEngineModel(std::move(model), tokenizer->vocab_size()),
                     .tokenizer = tokenizer,
                     .source = name,
                     .parameters = config.ParameterCount(),
                     .add_bos = add_bos};
}

}  // namespace millrace::serve
