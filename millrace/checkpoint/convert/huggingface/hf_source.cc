#include "millrace/checkpoint/convert/huggingface/hf_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/huggingface/hf_model.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The largest index of shards. A guess: an entry takes about 100 bytes.
constexpr std::uint64_t kMaxIndex = 100 * kMiB;
/// The first read of a shard. A guess: it covers the header of most shards, so that one request is enough.
constexpr std::uint64_t kFirstRead = 256 * kKiB;

class FolderSource {
 public:
  FolderSource(const object::Location& folder, ForeignFormat format, object::Call call)
      : names_(format == ForeignFormat::kPeft ? kAdapterFiles : kModelFiles),
        group_(format == ForeignFormat::kPeft ? kAdapterGroup : kModelGroup),
        call_(std::move(call)) {
    source_.format = format;
    source_.folder = folder;
    source_.name = NameOf(folder);
  }

  Result<ImportSource> Read() {
    source_.files = MR_TRY(FilesOfModel(source_.folder, call_));
    MR_TRY(ReadConfig());
    const std::set<std::string> weights = MR_TRY(FindWeights());
    for (const std::string& file : weights)
      MR_TRY(file.ends_with(".safetensors") ? AddSafetensors(file) : AddPickle(file));
    MR_TRY(CheckWanted());
    if (source_.format == ForeignFormat::kHuggingFace) NormalizeModel(source_);
    AddExtraFiles();
    NoteOtherFiles(weights);
    return std::move(source_);
  }

  /// Reads one file of weights, and config.json beside it if it exists.
  Result<ImportSource> ReadFile(const std::string& file) {
    for (const std::string& name : {file, std::string(names_.config)}) {
      auto info = MR_TRY(object::Head(*source_.folder.store, source_.folder.key + name, call_));
      if (info) source_.files.emplace(name, *std::move(info));
    }
    if (!source_.files.contains(file))
      return Fail(Code::kNotFound, "{}/{} does not exist; `millrace ls` lists what is there", source_.name, file);
    MR_TRY(ReadConfig());
    MR_TRY(AddSafetensors(file));
    if (source_.format == ForeignFormat::kHuggingFace) NormalizeModel(source_);
    AddExtraFiles();
    return std::move(source_);
  }

 private:
  std::string What(const std::string& file) const { return fmt::format("{}/{}", source_.name, file); }

  Result<std::string> ReadSmall(const std::string& file, std::uint64_t most) {
    auto content = MR_TRY(object::GetAll(*source_.folder.store, source_.folder.key + file, most, call_));
    if (!content) return Fail(Code::kStale, "{} was removed while the folder was read", What(file));
    return std::move(content->bytes);
  }

  Status ReadConfig() {
    const std::string file(names_.config);
    if (!source_.files.contains(file)) return {};
    const auto key = source_.format == ForeignFormat::kPeft ? kMetaAdapterConfig : kMetaModelConfig;
    source_.meta[std::string(key)] = MR_TRY(ParseJson(MR_TRY(ReadSmall(file, kMaxConfigBytes)), What(file)));
    return {};
  }

  /// Chooses files as transformers does: safetensors before pickles, one file before shards.
  Result<std::set<std::string>> FindWeights() {
    for (auto [single, index] : {std::pair(names_.single, names_.index), {names_.pickle, names_.pickle_index}}) {
      if (source_.files.contains(std::string(single))) return std::set{std::string(single)};
      if (!index.empty() && source_.files.contains(std::string(index))) return ReadIndex(std::string(index));
    }
    std::set<std::string> files;
    for (const auto& [name, info] : source_.files)
      if (name.ends_with(".safetensors")) files.insert(name);
    if (const std::string missing = MissingShard(files); !missing.empty()) {
      return Fail(Code::kCorrupt, "{} has no {}, and no {}: is it still being written?", source_.name, names_.index,
                  missing);
    }
    if (!files.empty()) return files;
    return Fail(Code::kNotFound, "{} has no {}, nor shards of it, nor {}; name the folder that has the weights",
                source_.name, names_.single, names_.pickle);
  }

  Result<std::set<std::string>> ReadIndex(const std::string& index) {
    const auto parsed = ParseJsonTree(MR_TRY(ReadSmall(index, kMaxIndex)), What(index));
    if (!parsed) return Fail(parsed.error().WithCode(Code::kCorrupt));
    const nlohmann::json& json = *parsed;
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
      return Fail(Code::kCorrupt, "{} has no weight_map", What(index));
    std::set<std::string> files;
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      if (!file.is_string() || !source_.files.contains(file.get<std::string>()))
        return Fail(Code::kCorrupt, "{}: the file of {} is not in the folder", What(index), tensor);
      wanted_.emplace(tensor, file.get<std::string>());
      files.insert(file.get<std::string>());
    }
    return files;
  }

  Status AddSafetensors(const std::string& file) {
    const object::ObjectInfo& info = source_.files.at(file);
    ObjectBytes bytes(*source_.folder.store, info, 0, info.size, call_);
    std::string header(std::min(info.size, kFirstRead), '\0');
    MR_TRY(bytes.ReadAt(0, AsWritableBytes(header)));
    const std::uint64_t length = MR_TRY(ParseSafetensorsLength(AsBytes(header), info.size, What(file)));
    if (const std::uint64_t there = header.size(); 8 + length > there) {
      header.resize(8 + length);
      MR_TRY(bytes.ReadAt(there, AsWritableBytes(header).subspan(there)));
    }
    auto entries = MR_TRY(ParseSafetensorsHeader(std::string_view(header).substr(8, length), info.size, What(file)));
    for (SafetensorsEntry& entry : entries) {
      if (!IsWanted(entry.name, file)) continue;
      std::string name = group_ + entry.name;
      if (entry.meta.elements() > 0) source_.boxes.push_back({name, {}, file, entry.offset, {}});
      if (!source_.tensors.emplace(name, std::move(entry.meta)).second)
        return Fail(Code::kCorrupt, "{}: another file has tensor {} too; an index must name the file to use",
                    What(file), entry.name);
    }
    return {};
  }

  Status AddPickle(const std::string& file) {
    const object::ObjectInfo& info = source_.files.at(file);
    ObjectBytes bytes(*source_.folder.store, info, 0, info.size, call_);
    const Json meta = source_.meta;
    MR_TRY(AddTorchState(bytes, file, group_, source_));
    source_.meta = meta;  // plain values in a file of weights belong to no model
    return {};
  }

  /// Whether the index names this file for the tensor. True without an index.
  bool IsWanted(const std::string& tensor, const std::string& file) const {
    if (wanted_.empty()) return true;
    auto found = wanted_.find(tensor);
    return found != wanted_.end() && found->second == file;
  }
  Status CheckWanted() {
    for (const auto& [tensor, file] : wanted_) {
      if (!source_.tensors.contains(group_ + tensor))
        return Fail(Code::kCorrupt, "{}: {} does not have tensor {}, which the index names", source_.name, file,
                    tensor);
    }
    return {};
  }

  void AddExtraFiles() {
    for (const auto& [file, info] : source_.files) AddModelFile(source_, file, file);
  }

  /// Names the files that are not imported, but for hidden ones: other weights, and what is too large.
  void NoteOtherFiles(const std::set<std::string>& weights) {
    std::vector<std::string> others;
    for (const auto& [file, info] : source_.files) {
      const bool is_index = file == names_.index || file == names_.pickle_index;
      const bool is_used = weights.contains(file) || (is_index && !wanted_.empty());
      if (is_used || file.starts_with('.') || source_.tensors.contains(std::string(kFilesGroup) + file)) continue;
      others.push_back(file);
    }
    if (others.empty()) return;
    source_.notes.push_back(fmt::format("files that are not imported: {}", fmt::join(others, ", ")));
  }

  const WeightsNames names_;
  const std::string group_;
  const object::Call call_;
  std::map<std::string, std::string> wanted_;  ///< tensor → file by the index; empty without an index
  ImportSource source_;
};

}  // namespace

Result<ImportSource> OpenHuggingFaceFolder(const object::Location& folder, ForeignFormat format, object::Call call) {
  if (folder.key.empty() || folder.key.ends_with('/')) return FolderSource(folder, format, std::move(call)).Read();
  const std::size_t slash = folder.key.rfind('/');
  const std::size_t start = slash == folder.key.npos ? 0 : slash + 1;
  return FolderSource({folder.store, folder.key.substr(0, start)}, format, std::move(call))
      .ReadFile(folder.key.substr(start));
}

}  // namespace millrace::checkpoint
