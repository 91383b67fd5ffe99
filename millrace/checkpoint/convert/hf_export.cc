// Hugging Face folders and PEFT's.
#include <algorithm>
#include <tuple>

#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/hf_folder.h"
#include "millrace/checkpoint/convert/tensor_stream.h"
#include "millrace/checkpoint/safetensors.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Whether a library would take the file for weights of the folder, or for their index.
bool IsOneOf(const WeightsNames& names, std::string_view file) {
  if (file == names.index || file == names.pickle_index) return !file.empty();
  for (std::string_view single : {names.single, names.pickle}) {
    const std::size_t dot = single.rfind('.');
    const std::string_view stem = single.substr(0, dot), suffix = single.substr(dot);
    if (file == single) return true;
    if (file.starts_with(stem) && file.ends_with(suffix) && file.substr(stem.size()).starts_with("-0") &&
        file.find("-of-") != file.npos)
      return true;
  }
  return false;
}

struct Shard {
  std::string file;
  std::vector<SafetensorsEntry> entries;
};

class FolderExport {
 public:
  FolderExport(TensorStream& stream, const ExportTarget& target, bool adapter)
      : stream_(stream),
        target_(target),
        names_(adapter ? kAdapterFiles : kModelFiles),
        group_(adapter ? kAdapterGroup : kModelGroup),
        config_key_(adapter ? kMetaAdapterConfig : kMetaModelConfig) {}

  Result<Exported> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    config_ = JsonFind(manifest.meta, config_key_);
    PlanShards(TensorsBelow(manifest, group_));
    if (shards_.empty()) return Fail(Code::kNotFound, "{} has no tensors named {}…", stream_.reader().name(), group_);
    if (config_ == nullptr) {
      return Fail(Code::kNotFound, "{} says nothing of its model: its meta has no {} to write {} from",
                  stream_.reader().name(), config_key_, names_.config);
    }
    std::vector<std::string> stale = MR_TRY(StaleFiles());
    // One file replaces the same one as a whole. Else nobody may take what is old for a part of what is new.
    if (shards_.size() > 1 || stale != std::vector{shards_[0].file}) MR_TRY(Remove(stale));
    for (const Shard& shard : shards_) MR_TRY(WriteShard(shard));
    for (const auto& [file, meta] : TensorsBelow(manifest, kFilesGroup)) MR_TRY(WriteFile(file, meta));
    MR_TRY(WriteConfig());
    if (shards_.size() > 1) MR_TRY(WriteIndex());
    return exported_;
  }

 private:
  Status Remove(const std::vector<std::string>& files) {
    for (const std::string& file : files)
      MR_TRY(object::Delete(*target_.to.store, target_.to.key + file, stream_.call()));
    return {};
  }

  /// Weights that lie in the folder, those first that name others.
  Result<std::vector<std::string>> StaleFiles() const {
    std::vector<std::string> stale;
    for (const auto& [file, info] : MR_TRY(FilesOf(target_.to, stream_.call()))) {
      if (IsOneOf(names_, file)) stale.push_back(file);
    }
    std::ranges::sort(stale, {}, [](const std::string& file) { return std::pair(!file.ends_with(".json"), file); });
    return stale;
  }

  /// Large elements first, as safetensors' own writer sorts them; a new file where one would be too large.
  void PlanShards(const std::map<std::string, TensorMeta>& tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, meta] : tensors) entries.push_back({name, meta});
    std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      const auto wide = DTypeBytes(a.meta.dtype), as_wide = DTypeBytes(b.meta.dtype);
      return wide != as_wide ? wide > as_wide : a.name < b.name;
    });
    std::uint64_t bytes = 0;
    const bool one = names_.index.empty();
    for (SafetensorsEntry& entry : entries) {
      bytes += entry.meta.bytes();
      if (shards_.empty() || (!one && bytes > target_.file_bytes && !shards_.back().entries.empty())) {
        shards_.emplace_back();
        bytes = entry.meta.bytes();
      }
      shards_.back().entries.push_back(std::move(entry));
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const std::string_view stem = names_.single.substr(0, names_.single.rfind('.'));
      shards_[i].file = shards_.size() == 1 ? std::string(names_.single)
                                            : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards_.size());
    }
  }

  Status WriteShard(const Shard& shard) {
    std::vector<SafetensorsEntry> entries = shard.entries;
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + shard.file, {});
    const object::Call& call = stream_.call();
    MR_TRY(out.Write(AsBytes(MakeSafetensorsHeader(entries, {{"format", "pt"}})), call));
    for (const SafetensorsEntry& entry : entries) {
      MR_TRY(stream_.Stream(group_ + entry.name, [&](ByteSpan bytes) { return out.Write(bytes, call); }));
      parameters_ += entry.meta.elements();
      parameter_bytes_ += entry.meta.bytes();
    }
    exported_.tensors += entries.size();
    return Count(MR_TRY(out.Finish(call)).size);
  }

  Status WriteFile(const std::string& file, const TensorMeta& meta) {
    if (!IsModelFile(file) || meta.dtype != DType::kU8) {
      return Fail(Code::kCorrupt, "{} has a file named \"{}\", which no model's folder may have",
                  stream_.reader().name(), file);
    }
    if (file == names_.config) return {};
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + file,
                                  {.expected_bytes = meta.bytes()});
    MR_TRY(stream_.Stream(std::string(kFilesGroup) + file,
                          [&](ByteSpan bytes) { return out.Write(bytes, stream_.call()); }));
    return Count(MR_TRY(out.Finish(stream_.call())).size);
  }

  /// As it came, byte by byte, where it still says what the checkpoint does.
  Status WriteConfig() {
    std::string text = DumpJsonPretty(*config_) + "\n";
    const auto& tensors = stream_.reader().manifest().tensors;
    const auto kept = tensors.find(fmt::format("{}{}", kFilesGroup, names_.config));
    if (kept != tensors.end() && kept->second.bytes() <= kMaxConfigBytes) {
      std::string original;
      MR_TRY(stream_.Stream(kept->first, [&](ByteSpan bytes) {
        original += AsText(bytes);
        return Status();
      }));
      if (const auto parsed = ParseJson(original, names_.config); parsed && *parsed == *config_) text = original;
    }
    return PutJson(std::string(names_.config), text);
  }

  Status WriteIndex() {
    Json::object_t map;
    std::map<std::string, std::string> sorted;
    for (const Shard& shard : shards_)
      for (const SafetensorsEntry& entry : shard.entries) sorted.emplace(entry.name, shard.file);
    for (auto& [name, file] : sorted) map.emplace_back(name, std::move(file));
    const Json index{{"metadata", {{"total_parameters", parameters_}, {"total_size", parameter_bytes_}}},
                     {"weight_map", std::move(map)}};
    return PutJson(std::string(names_.index), DumpJsonPretty(index) + "\n");
  }

  Status PutJson(const std::string& file, const std::string& text) {
    MR_TRY(object::Put(*target_.to.store, target_.to.key + file, AsBytes(text), {.content_type = "application/json"},
                       stream_.call()));
    return Count(text.size());
  }
  Status Count(std::uint64_t bytes) {
    ++exported_.files;
    exported_.bytes += bytes;
    return {};
  }

  TensorStream& stream_;
  const ExportTarget& target_;
  const WeightsNames names_;
  const std::string group_;
  const std::string_view config_key_;
  const Json* config_ = nullptr;
  std::vector<Shard> shards_;
  std::uint64_t parameters_ = 0, parameter_bytes_ = 0;
  Exported exported_;
};

}  // namespace

Result<Exported> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter) {
  return FolderExport(stream, target, adapter).Run();
}

}  // namespace millrace::checkpoint
