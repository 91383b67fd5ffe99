#include "millrace/checkpoint/read/model_source.h"

#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kMostTokenizer = 256 * kMiB;
constexpr std::string_view kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model", "vocab.txt"};

}  // namespace

Result<ModelSource> ModelSource::Open(object::Connection& connection, std::string_view url,
                                      std::optional<std::uint64_t> step, const Logger& log, object::Call call) {
  auto held = OpenHeld(connection, url, step, log, call);
  if (held) return ModelSource(*std::move(held));
  if (held.error().code() != Code::kNotFound || step) return Fail(held.error());
  auto files = OpenSafetensorsFiles(connection, url, call);
  if (!files && files.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound,
                "no model at {}: neither committed checkpoints (`millrace ckpt ls` shows them) nor *.safetensors files",
                url);
  }
  if (!files) return Fail(files.error());
  // The reader holds the store, which is the connection's.
  object::Location folder = MR_TRY(object::Locate(connection, url));
  folder.key = (*files)->folder();
  return ModelSource(*std::move(files), std::move(folder));
}

std::optional<std::uint64_t> ModelSource::step() const {
  if (folder_.store) return std::nullopt;
  return reader().manifest().step;
}

Result<std::optional<std::string>> ModelSource::File(std::string_view name, std::uint64_t most,
                                                     object::Call call) const {
  if (folder_.store) {
    auto content = MR_TRY(object::GetAll(*folder_.store, folder_.key + std::string(name), most, call));
    if (!content) return std::optional<std::string>();
    return std::move(content->bytes);
  }
  const auto& tensors = reader().manifest().tensors;
  const auto kept = tensors.find(fmt::format("{}{}", kFilesGroup, name));
  if (kept == tensors.end()) return std::optional<std::string>();
  if (kept->second.dtype != DType::kU8)
    return Fail(Code::kCorrupt, "{}: {} is no file: its elements are no bytes", this->name(), kept->first);
  if (kept->second.bytes() > most) {
    return Fail(Code::kResourceExhausted, "{}: {} has {} bytes, more than {}", this->name(), kept->first,
                kept->second.bytes(), most);
  }
  std::string bytes(kept->second.bytes(), '\0');
  MR_TRY(reader().Read(kept->first, 0, AsWritableBytes(bytes), std::move(call)));
  return bytes;
}

Status LoadTokenizerOf(const ModelSource& model, const TokenizerLoader& load, const Logger& log, object::Call call) {
  std::optional<Error> first;
  for (const std::string_view file : kTokenizerFiles) {
    const auto bytes = MR_TRY(model.File(file, kMostTokenizer, call));
    if (!bytes) continue;
    Status loaded = load(AsBytes(*bytes), fmt::format("{}/{}", model.name(), file));
    if (loaded) {
      if (first) log.Warning("another form of the model's tokenizer is used", {{"file", file}, {"why", *first}});
      return {};
    }
    if (loaded.error().code() != Code::kUnsupported) return loaded;
    if (!first) first = loaded.error();
  }
  if (first) return Fail(*first);
  return Fail(Code::kNotFound, "{} has no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.txt",
              model.name());
}

Status LoadTokenizerAt(object::Connection& connection, std::string_view url, const TokenizerLoader& load,
                       const Logger& log, object::Call call) {
  const object::Location location = MR_TRY(object::Locate(connection, url));
  if (!location.key.empty() && !location.key.ends_with('/')) {
    const auto content = MR_TRY(object::GetAll(*location.store, location.key, kMostTokenizer, call));
    if (content) return load(AsBytes(content->bytes), std::string(url));
  }
  auto model = ModelSource::Open(connection, url, std::nullopt, log, call);
  if (!model && model.error().code() == Code::kNotFound) {
    // Without its bucket, a tokenizer is not what is missing.
    if (auto listed = object::List(*location.store, {.max_keys = 1}, call); !listed) return Fail(listed.error());
    return Fail(Code::kNotFound,
                "there is no tokenizer at {}, nor a model that has one; make one with `millrace tokenizer train`", url);
  }
  if (!model) return Fail(model.error());
  return LoadTokenizerOf(*model, load, log, std::move(call));
}

}  // namespace millrace::checkpoint
