#include "millrace/checkpoint/convert/huggingface/hf_export.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/checkpoint/convert/source/meta_names.h"
#include "millrace/checkpoint/convert/stream/group_view.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/multipart_writer.h"

namespace millrace::checkpoint {
namespace {

/// The bytes that a comparison of two files reads at once. A guess: tokenizer files have a few MiB.
constexpr std::uint64_t kCompared = 1 * kMiB;
/// The hex digits in the names of shards that replace shards of an older export. A guess: 32 random bits do not
/// collide among the few exports of one folder.
constexpr std::size_t kMark = 8;

/// Whether the text is "-00001-of-00003" or, with the mark of a replacing export, "-5d1c0a9b-00001-of-00003".
bool IsShardOf(std::string_view rest) {
  const auto digits = [&] {
    const std::size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
    rest.remove_prefix(count);
    return count > 0;
  };
  const auto take = [&](std::string_view text) {
    const bool there = rest.starts_with(text);
    if (there) rest.remove_prefix(text.size());
    return there;
  };
  if (!take("-")) return false;
  const bool marked = rest.size() > kMark && rest[kMark] == '-' && rest.find_first_not_of("0123456789abcdef") == kMark;
  if (marked) rest.remove_prefix(kMark + 1);
  return digits() && take("-of-") && digits() && rest.empty();
}

/// Whether a library would take the file for weights of the folder, or for their index.
bool IsOneOf(const WeightsNames& names, std::string_view file) {
  if (file == names.index || file == names.pickle_index) return !file.empty();
  for (std::string_view single : {names.single, names.pickle}) {
    const std::size_t dot = single.rfind('.');
    const std::string_view stem = single.substr(0, dot), suffix = single.substr(dot);
    if (file == single) return true;
    if (file.starts_with(stem) && file.ends_with(suffix) &&
        IsShardOf(file.substr(stem.size(), file.size() - stem.size() - suffix.size())))
      return true;
  }
  return false;
}

/// Returns the names of the group's tensors that are stored transposed.
std::set<std::string> TransposedNames(const Json& meta) {
  std::set<std::string> names;
  const Json* list = JsonFind(meta, kMetaTransposed);
  if (list == nullptr || !list->is_array()) return names;
  for (const Json& name : *list) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

/// Writes the transpose of a matrix [rows, columns] of elements of `width` bytes. Goes through tiles, so that lines of
/// the cache are used whole.
void Transpose(ByteSpan from, MutableByteSpan to, std::uint64_t rows, std::uint64_t columns, std::uint64_t width) {
  constexpr std::uint64_t kTile = 32;  // 32 rows of 32 floats: 4 KiB on each side, in the first-level cache
  for (std::uint64_t row = 0; row < rows; row += kTile) {
    for (std::uint64_t column = 0; column < columns; column += kTile) {
      for (std::uint64_t i = row; i < std::min(rows, row + kTile); ++i) {
        for (std::uint64_t j = column; j < std::min(columns, column + kTile); ++j) {
          std::memcpy(to.data() + (j * rows + i) * width, from.data() + (i * columns + j) * width, width);
        }
      }
    }
  }
}

struct Shard {
  std::string file;
  std::vector<SafetensorsEntry> entries;
};

class FolderExport {
 public:
  FolderExport(TensorStream& stream, const ExportTarget& target, bool adapter,
               const std::map<std::string, std::string>& further)
      : stream_(stream),
        target_(target),
        names_(adapter ? kAdapterFiles : kModelFiles),
        group_(adapter ? kAdapterGroup : kModelGroup),
        config_key_(adapter ? kMetaAdapterConfig : kMetaModelConfig),
        further_(further) {}

  Result<ExportResult> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    config_ = JsonFind(manifest.meta, config_key_);
    transposed_ = TransposedNames(manifest.meta);
    PlanShards(TensorsBelow(manifest, group_));
    if (shards_.empty()) return Fail(Code::kNotFound, "{} has no tensors named {}…", stream_.reader().name(), group_);
    if (config_ == nullptr) {
      return Fail(Code::kNotFound, "{} does not describe its model: its meta has no {} to write {} from",
                  stream_.reader().name(), config_key_, names_.config);
    }
    const auto files = TensorsBelow(manifest, kFilesGroup);
    for (const auto& [file, meta] : files) MR_TRY(CheckFile(file, meta));
    std::erase_if(further_,
                  [&](const auto& file) { return files.contains(file.first) || file.first == names_.config; });
    const std::string config = MR_TRY(ConfigText());
    auto there = MR_TRY(FilesOf(target_.to, stream_.call()));
    std::vector<std::string> stale = StaleFiles(there);
    // The put of the index replaces the weights alone, not the files beside them. If these change too, remove the old
    // weights first: no model is better than the weights of one model with the tokenizer of another.
    if (!stale.empty() && !MR_TRY(SameBeside(there, files, config))) {
      MR_TRY(Remove(stale));
      for (const std::string& file : std::exchange(stale, {})) there.erase(file);
    }
    NameShards(there);
    for (const auto& [file, meta] : files) MR_TRY(WriteFile(file, meta));
    for (const auto& [file, content] : further_) {
      MR_TRY(object::Put(*target_.to.store, target_.to.key + file, AsBytes(content), {}, stream_.call()));
      MR_TRY(Count(content.size()));
    }
    MR_TRY(PutJson(std::string(names_.config), config));
    std::vector<std::string> order;
    for (const Shard& shard : shards_)
      for (const SafetensorsEntry& entry : shard.entries) order.push_back(group_ + entry.name);
    stream_.Announce(order);
    const bool sharded = shards_.size() > 1;
    if (sharded) {
      for (const Shard& shard : shards_) MR_TRY(WriteShard(shard));
    }
    // The commit: up to here no program reads the new shards, and all old shards are there. If the folder has both a
    // single file and an index, some programs prefer the one and some the other. Both are whole until Remove.
    MR_TRY(sharded ? WriteIndex() : WriteShard(shards_[0]));
    const std::string commit(sharded ? names_.index : names_.single);
    std::erase(stale, commit);
    MR_TRY(Remove(stale));
    return exported_;
  }

 private:
  Status Remove(const std::vector<std::string>& files) {
    for (const std::string& file : files)
      MR_TRY(object::Delete(*target_.to.store, target_.to.key + file, stream_.call()));
    return {};
  }

  using Files = std::map<std::string, object::ObjectInfo>;

  /// Returns the old files of weights in the order in which to remove them: single files and indexes before shards.
  std::vector<std::string> StaleFiles(const Files& there) const {
    std::vector<std::string> stale;
    for (const auto& [file, info] : there) {
      if (IsOneOf(names_, file)) stale.push_back(file);
    }
    const auto named = [&](const std::string& file) {
      return file != names_.single && file != names_.index && file != names_.pickle && file != names_.pickle_index;
    };
    std::ranges::sort(stale, {},
                      [&](const std::string& file) { return std::pair(named(file), std::string_view(file)); });
    return stale;
  }

  /// Whether the folder already has all files beside the weights, with the same bytes.
  Result<bool> SameBeside(const Files& there, const std::map<std::string, TensorMeta>& files,
                          const std::string& config) const {
    const auto old = there.find(std::string(names_.config));
    if (old == there.end() || old->second.size != config.size()) return false;
    const auto content = MR_TRY(object::GetAll(*target_.to.store, old->second.key, kMaxConfigBytes, stream_.call()));
    if (!content || content->bytes != config) return false;
    for (const auto& [file, content] : further_) {
      const auto known = there.find(file);
      if (known == there.end() || known->second.size != content.size()) return false;
      const auto old_file =
          MR_TRY(object::GetAll(*target_.to.store, known->second.key, content.size(), stream_.call()));
      if (!old_file || old_file->bytes != content) return false;
    }
    for (const auto& [file, meta] : files) {
      if (file == names_.config) continue;
      const auto known = there.find(file);
      if (known == there.end() || known->second.size != meta.bytes()) return false;
      if (!MR_TRY(SameBytes(file, known->second))) return false;
    }
    return true;
  }
  Result<bool> SameBytes(const std::string& file, const object::ObjectInfo& info) const {
    Buffer ours(std::min(info.size, kCompared)), theirs(ours.size());
    for (std::uint64_t done = 0; done < info.size; done += ours.size()) {
      const std::uint64_t size = std::min<std::uint64_t>(ours.size(), info.size - done);
      const MutableByteSpan mine = ours.span().first(size), old = theirs.span().first(size);
      MR_TRY(stream_.reader().Read(std::string(kFilesGroup) + file, done, mine, stream_.call()));
      const object::GetOptions range{.range = object::ByteRange{done, size}, .if_match = info.etag};
      const auto got = MR_TRY(object::Get(*target_.to.store, info.key, range, old, stream_.call()));
      if (!got || got->bytes != size || !std::ranges::equal(mine, old)) return false;
    }
    return true;
  }

  /// Sorts tensors by element size, largest first, as the writer of safetensors does. Starts a new shard before one
  /// grows beyond target_.file_bytes.
  void PlanShards(const std::map<std::string, TensorMeta>& tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, meta] : tensors) {
      entries.push_back({name, meta});
      std::vector<std::int64_t>& shape = entries.back().meta.shape;
      if (IsTransposed(entries.back())) std::swap(shape[0], shape[1]);
    }
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
  }

  /// Names the shards as Hugging Face's libraries do. If a file of such a name exists, adds a random mark to all names:
  /// the existing file belongs to the old index, which must stay whole until the new one replaces it.
  void NameShards(const Files& there) {
    if (shards_.size() == 1) {
      shards_[0].file = names_.single;
      return;
    }
    std::string stem(names_.single.substr(0, names_.single.rfind('.')));
    const auto name = [&](std::size_t i) {
      return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards_.size());
    };
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (!there.contains(name(i))) continue;
      stem += "-" + NewAttempt().substr(0, kMark);
      break;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].file = name(i);
  }

  Status WriteShard(const Shard& shard) {
    std::vector<SafetensorsEntry> entries = shard.entries;
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + shard.file, {});
    const object::Call& call = stream_.call();
    MR_TRY(out.Write(AsBytes(MakeSafetensorsHeader(entries, {{"format", "pt"}})), call));
    for (const SafetensorsEntry& entry : entries) {
      MR_TRY(WriteTensor(entry, out));
      parameters_ += entry.meta.elements();
      parameter_bytes_ += entry.meta.bytes();
    }
    exported_.tensors += entries.size();
    return Count(MR_TRY(out.Finish(call)).size);
  }

  bool IsTransposed(const SafetensorsEntry& entry) const {
    return entry.meta.shape.size() == 2 && transposed_.contains(entry.name);
  }

  /// A transposed matrix is held in memory twice.
  Status WriteTensor(const SafetensorsEntry& entry, transfer::MultipartWriter& out) {
    const std::string tensor = group_ + entry.name;
    const object::Call& call = stream_.call();
    if (!IsTransposed(entry)) return stream_.Stream(tensor, [&](ByteSpan bytes) { return out.Write(bytes, call); });
    Buffer stored(entry.meta.bytes()), turned(entry.meta.bytes());
    std::uint64_t done = 0;
    MR_TRY(stream_.Stream(tensor, [&](ByteSpan bytes) -> Status {
      std::ranges::copy(bytes, stored.span().begin() + static_cast<std::ptrdiff_t>(done));
      done += bytes.size();
      return {};
    }));
    const auto rows = static_cast<std::uint64_t>(entry.meta.shape[1]);  // of what is stored
    const auto columns = static_cast<std::uint64_t>(entry.meta.shape[0]);
    Transpose(stored.span(), turned.span(), rows, columns, DTypeBytes(entry.meta.dtype));
    return out.Write(turned.span(), call);
  }

  Status CheckFile(const std::string& file, const TensorMeta& meta) const {
    if (IsModelFile(file) && meta.dtype == DType::kU8) return {};
    return Fail(Code::kCorrupt, "{} has a file named \"{}\", which is not allowed in a model's folder",
                stream_.reader().name(), file);
  }

  Status WriteFile(const std::string& file, const TensorMeta& meta) {
    if (file == names_.config) return {};
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + file,
                                  {.expected_bytes = meta.bytes()});
    MR_TRY(stream_.Stream(std::string(kFilesGroup) + file,
                          [&](ByteSpan bytes) { return out.Write(bytes, stream_.call()); }));
    return Count(MR_TRY(out.Finish(stream_.call())).size);
  }

  /// Returns the text of the configuration file. Prefers the imported file, byte for byte, if its JSON still equals the
  /// checkpoint's meta.
  Result<std::string> ConfigText() const {
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
    return text;
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
  std::map<std::string, std::string> further_;  ///< ExportOptions::files that the checkpoint does not have
  const Json* config_ = nullptr;
  std::set<std::string> transposed_;
  std::vector<Shard> shards_;
  std::uint64_t parameters_ = 0, parameter_bytes_ = 0;
  ExportResult exported_;
};

}  // namespace

Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files) {
  return FolderExport(stream, target, adapter, files).Run();
}

}  // namespace millrace::checkpoint
