#include "millrace/checkpoint/convert/source.h"

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::size_t kMostFiles = 100'000;
constexpr std::string_view kFormatNames[] = {"hf", "peft", "torch", "dcp"};
constexpr std::string_view kTorchSuffixes[] = {".pt", ".pth", ".bin", ".ckpt"};

bool IsTorchFile(std::string_view name) {
  return std::any_of(std::begin(kTorchSuffixes), std::end(kTorchSuffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

}  // namespace

std::string_view FormatName(Format format) { return kFormatNames[static_cast<std::size_t>(format)]; }

Result<Format> ParseFormat(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kFormatNames); ++i)
    if (kFormatNames[i] == name) return static_cast<Format>(i);
  return Fail(Code::kInvalidArgument, "{}", UnknownName("format", name, kFormatNames));
}

std::uint64_t Source::TensorBytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [tensor, tensor_meta] : tensors) bytes += tensor_meta.bytes();
  return bytes;
}

void Source::Rename(const std::function<std::optional<std::string>(const std::string&)>& renamed) {
  std::map<std::string, std::optional<std::string>> names;
  std::map<std::string, TensorMeta> kept;
  for (auto& [tensor, tensor_meta] : tensors) {
    const auto& to = names[tensor] = renamed(tensor);
    if (to) kept.emplace(*to, std::move(tensor_meta));
  }
  tensors = std::move(kept);
  std::erase_if(pieces, [&](const SourcePiece& piece) { return !names.at(piece.tensor); });
  for (SourcePiece& piece : pieces) piece.tensor = *names.at(piece.tensor);
}

Status TakeValues(std::map<std::string, Json> values, std::map<std::string, Json> dicts, Source& source) {
  if (auto meta = values.extract(std::string(kMetaEntry)); !meta.empty()) {
    if (!meta.mapped().is_string()) return Fail(Code::kCorrupt, "{}: its {} is no text", source.name, kMetaEntry);
    source.meta = MR_TRY(ParseJson(meta.mapped().get_ref<const std::string&>(), kMetaEntry));
    if (!source.meta.is_object()) return Fail(Code::kCorrupt, "{}: its {} is no object", source.name, kMetaEntry);
    source.meta.erase(std::string(kMetaPaths));
    // What an export knew of the state's dicts, OrderedDicts among them, says more than the names of entries.
    if (const Json* kept = JsonFind(source.meta, kMetaDicts); kept != nullptr && kept->is_object()) {
      for (const auto& [path, described] : kept->items()) dicts[path] = described;
    }
  }
  if (!values.empty()) source.meta[std::string(kMetaValues)] = Json::object_t(values.begin(), values.end());
  if (!dicts.empty()) source.meta[std::string(kMetaDicts)] = Json::object_t(dicts.begin(), dicts.end());
  return {};
}

std::string NameOf(const object::Location& folder) {
  std::string_view key = folder.key;
  while (key.ends_with('/')) key.remove_suffix(1);
  return fmt::format("{}/{}", folder.store->Describe(), key);
}

Result<object::Location> LocateFolder(object::Connection& connection, std::string_view url) {
  object::Location folder = MR_TRY(object::Locate(connection, url));
  while (folder.key.ends_with('/')) folder.key.pop_back();
  if (!folder.key.empty()) folder.key += '/';
  return folder;
}

Result<std::map<std::string, object::ObjectInfo>> FilesOf(const object::Location& folder, const object::Call& call) {
  std::map<std::string, object::ObjectInfo> files;
  MR_TRY(object::ListAll(
      *folder.store, {.prefix = folder.key, .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& info : page.objects) {
          std::string name = info.key.substr(folder.key.size());
          if (!name.empty()) files.emplace(std::move(name), info);
        }
        return files.size() <= kMostFiles;
      },
      call));
  if (files.size() > kMostFiles)
    return Fail(Code::kResourceExhausted, "{} has more than {} files", NameOf(folder), kMostFiles);
  return files;
}

Result<Format> DetectFormat(object::Connection& connection, std::string_view url, object::Call call) {
  if (url.ends_with(".safetensors")) return Format::kHuggingFace;
  const object::Location folder = MR_TRY(LocateFolder(connection, url));
  const auto files = MR_TRY(FilesOf(folder, call));
  if (files.contains(".metadata")) return Format::kDcp;
  if (files.contains("adapter_config.json")) return Format::kPeft;
  for (const auto& [name, info] : files)
    if (name.ends_with(".safetensors") || name.starts_with("pytorch_model")) return Format::kHuggingFace;
  if (files.empty()) {
    if (IsTorchFile(url)) return Format::kTorch;
    if (MR_TRY(object::Head(*folder.store, folder.key.substr(0, folder.key.size() - !folder.key.empty()), call)))
      return Format::kTorch;
  }
  return Fail(Code::kNotFound,
              "{} is nothing that can be imported: no folder with *.safetensors or pytorch_model.bin (Hugging Face), "
              "adapter_config.json (PEFT) or .metadata (torch.distributed.checkpoint), and no file of torch.save's",
              NameOf(folder));
}

Result<Source> OpenSource(object::Connection& connection, std::string_view url, Format format, object::Call call) {
  if (format == Format::kTorch) return OpenTorchFile(MR_TRY(object::Locate(connection, url)), std::move(call));
  // One file of a folder stands for a folder that has nothing else.
  if (url.ends_with(".safetensors"))
    return OpenHuggingFaceFolder(MR_TRY(object::Locate(connection, url)), format, std::move(call));
  const object::Location folder = MR_TRY(LocateFolder(connection, url));
  if (format == Format::kDcp) return OpenDcpFolder(folder, std::move(call));
  return OpenHuggingFaceFolder(folder, format, std::move(call));
}

}  // namespace millrace::checkpoint
