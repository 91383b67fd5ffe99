#include "millrace/checkpoint/read/model_source.h"

#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

Result<ModelSource> ModelSource::Open(object::Connection& connection, std::string_view url,
                                      std::optional<std::uint64_t> step, const Logger& log, object::Call call) {
  if (IsGgufUrl(url)) return ModelSource(MR_TRY(GgufReader::Open(connection, url, std::move(call))));
  auto held = OpenHeld(connection, url, step, log, call);
  if (held) return ModelSource(*std::move(held));
  if (held.error().code() != Code::kNotFound || step) return Fail(held.error());
  auto files = OpenSafetensors(connection, url, call);
  if (!files && files.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound,
                "no model at {}: neither committed checkpoints (`millrace ckpt ls` shows them) nor *.safetensors files",
                url);
  }
  if (!files) return Fail(files.error());
  // The reader keeps the store alive.
  object::Location folder = MR_TRY(object::Locate(connection, url));
  folder.key = (*files)->folder();
  return ModelSource(*std::move(files), std::move(folder));
}

std::optional<std::uint64_t> ModelSource::step() const {
  if (folder_.store || gguf_ != nullptr) return std::nullopt;
  return reader().manifest().step;
}

Result<std::string> ModelSource::Version(object::Call call) const {
  if (!version_.empty()) return version_;
  const Manifest& manifest = reader().manifest();
  std::string version = name();
  if (gguf_ != nullptr) return version + " " + gguf_->etag();
  if (!folder_.store) return version + " " + manifest.attempt;
  for (const auto& [file, meta] : manifest.files) {
    const auto info = MR_TRY(object::Head(*folder_.store, folder_.key + file, call));
    if (!info) return Fail(Code::kStale, "{}: {} is gone", name(), file);
    version += fmt::format(" {} {} {}", file, info->size, info->etag);
  }
  return version;
}

Result<std::optional<Json>> ModelSource::AdapterConfig(object::Call call) const {
  constexpr std::string_view kFile = "adapter_config.json";
  constexpr std::uint64_t kMaxBytes = 1 * kMiB;  // PEFT's files have about a kilobyte
  const Json* stored = JsonFind(reader().manifest().meta, kMetaAdapterConfig);
  if (stored != nullptr) return std::optional<Json>(*stored);
  if (!folder_.store) return std::optional<Json>();
  const auto text = MR_TRY(File(kFile, kMaxBytes, std::move(call)));
  if (!text) return std::optional<Json>();
  return MR_TRY(ParseJson(*text, fmt::format("{}/{}", name(), kFile)));
}

Result<std::optional<std::string>> ModelSource::File(std::string_view name, std::uint64_t most,
                                                     object::Call call) const {
  if (folder_.store) {
    auto content = MR_TRY(object::GetAll(*folder_.store, folder_.key + std::string(name), most, call));
    if (!content) return std::optional<std::string>();
    return std::move(content->bytes);
  }
  if (gguf_ != nullptr) {
    const GgufTokenizer& tokenizer = gguf_->tokenizer();
    if (tokenizer.files.empty() && name == "tokenizer.json") {
      return Fail(Code::kUnsupported, "{}: {}", this->name(), tokenizer.refusal);
    }
    const auto file = tokenizer.files.find(std::string(name));
    return file != tokenizer.files.end() ? std::optional(file->second) : std::nullopt;
  }
  const auto& tensors = reader().manifest().tensors;
  const auto kept = tensors.find(fmt::format("{}{}", kFilesGroup, name));
  if (kept == tensors.end()) {
    const Json* carried = JsonFind(reader().manifest().meta, kMetaGenerationConfig);
    if (carried == nullptr || name != kGenerationConfigFile) return std::optional<std::string>();
    return DumpJsonPretty(*carried) + "\n";
  }
  if (kept->second.dtype != DType::kU8)
    return Fail(Code::kCorrupt, "{}: {} is not a file: its element type is not U8", this->name(), kept->first);
  if (kept->second.bytes() > most) {
    return Fail(Code::kResourceExhausted, "{}: {} has {} bytes, more than {}", this->name(), kept->first,
                kept->second.bytes(), most);
  }
  std::string bytes(kept->second.bytes(), '\0');
  MR_TRY(reader().Read(kept->first, 0, AsWritableBytes(bytes), std::move(call)));
  return bytes;
}

Result<std::vector<std::string>> ModelSource::FilesIn(std::string_view subfolder, object::Call call) const {
  constexpr std::size_t kMaxFiles = 1000;  // a guess: models have a few templates
  std::vector<std::string> files;
  if (!folder_.store) {
    const std::string prefix = fmt::format("{}{}", kFilesGroup, subfolder);
    for (const auto& [tensor, meta] : reader().manifest().tensors) {
      if (tensor.starts_with(prefix)) files.push_back(tensor.substr(kFilesGroup.size()));
    }
    return files;
  }
  MR_TRY(object::ListAll(
      *folder_.store, {.prefix = folder_.key + std::string(subfolder), .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& info : page.objects) files.push_back(info.key.substr(folder_.key.size()));
        return files.size() <= kMaxFiles;
      },
      call));
  if (files.size() > kMaxFiles)
    return Fail(Code::kResourceExhausted, "{}/{} has more than {} files", name(), subfolder, kMaxFiles);
  return files;
}

}  // namespace millrace::checkpoint
