#include "millrace/checkpoint/convert/tensors/export_target.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/huggingface/hf_model.h"
#include "millrace/checkpoint/convert/tensors/group_view.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/convert/tensors/transpose.h"
#include "millrace/checkpoint/convert/tensors/weight_quantizer.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/engine/config/families.h"
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

/// A tensor of a shard: one of the checkpoint, or a part of a weight that is quantized.
struct ShardTensor {
  SafetensorsEntry entry;
  std::optional<QuantizedPart> part = {};
  /// Returns the name of the checkpoint's tensor that is streamed for it; nothing if there is none.
  const std::string* streamed() const {
    if (!part) return &entry.name;
    return part->kind == QuantizedPart::Kind::kCodes ? &part->weight : nullptr;
  }
};
struct Shard {
  std::string file;
  std::vector<ShardTensor> tensors;
};

/// Returns the module that a parameter is of.
std::string ModuleOf(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

/// Orders the parts of quantized weights in a shard. Scales follow their codes, and then what is known only after them.
int OrderOf(const ShardTensor& tensor) {
  using Kind = QuantizedPart::Kind;
  if (!tensor.part) return 0;
  switch (tensor.part->kind) {
    case Kind::kCodes:
    case Kind::kScales:
      return 1;
    case Kind::kState:
      return 2;
    case Kind::kFormat:
      return 4;
    default:
      return 3;  // float32
  }
}

/// Puts the tensors in order and aligns those of float32 behind the codes: the last state gets further spaces.
/// Errors: kUnsupported if there is no state.
Status Arrange(Shard& shard) {
  std::vector<ShardTensor> in_order;
  constexpr int kOrders = 5;
  for (int order = 0; order < kOrders; ++order) {
    for (const ShardTensor& tensor : shard.tensors) {
      if (OrderOf(tensor) == order) in_order.push_back(tensor);
    }
  }
  shard.tensors = std::move(in_order);
  std::uint64_t before = 0;
  SafetensorsEntry* last_state = nullptr;
  bool has_floats = false;
  for (ShardTensor& tensor : shard.tensors) {
    const int order = OrderOf(tensor);
    has_floats = has_floats || order == 3;
    if (order < 3) before += tensor.entry.meta.bytes();
    if (order == 2) last_state = &tensor.entry;
  }
  constexpr std::uint64_t kAlignment = sizeof(float);
  const std::uint64_t missing = (kAlignment - before % kAlignment) % kAlignment;
  if (!has_floats || missing == 0) return {};
  if (last_state == nullptr) {
    return Fail(Code::kUnsupported, "the scales of int8 would not be aligned behind {} bytes of weights", before);
  }
  last_state->meta.shape[0] += static_cast<std::int64_t>(missing);
  return {};
}

class FolderExport {
 public:
  FolderExport(TensorStream& stream, const ExportTarget& target, bool adapter,
               const std::map<std::string, std::string>& further, std::optional<engine::Quantization> quantization)
      : stream_(stream),
        quantization_(quantization),
        target_(target),
        names_(adapter ? kAdapterFiles : kModelFiles),
        group_(adapter ? kAdapterGroup : kModelGroup),
        config_key_(adapter ? kMetaAdapterConfig : kMetaModelConfig),
        further_(further) {}

  Result<ExportResult> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    config_ = JsonFind(manifest.meta, config_key_);
    transposed_ = TransposedNames(manifest.meta);
    MR_TRY(PlanShards(TensorsBelow(manifest, group_)));
    if (shards_.empty() && group_ == kModelGroup && !TensorsBelow(manifest, kAdapterGroup).empty()) {
      return Fail(Code::kInvalidArgument,
                  "{} is an adapter (LoRA): `--to peft` writes it, and `millrace ckpt merge` makes a whole model of it",
                  stream_.reader().name());
    }
    if (shards_.empty()) {
      return Fail(Code::kNotFound, "{} has no tensors named {}…; `millrace ckpt show` shows what it has",
                  stream_.reader().name(), group_);
    }
    if (config_ == nullptr) {
      return Fail(Code::kNotFound,
                  "{} does not describe its model: its meta has no {} to write {} from; export a checkpoint that a run "
                  "or an import saved",
                  stream_.reader().name(), config_key_, names_.config);
    }
    const auto files = TensorsBelow(manifest, kFilesGroup);
    for (const auto& [file, meta] : files) MR_TRY(CheckFile(file, meta));
    std::erase_if(further_,
                  [&](const auto& file) { return files.contains(file.first) || file.first == names_.config; });
    if (quantization_ && JsonFind(*config_, "quantization_config") != nullptr) {
      return Fail(Code::kInvalidArgument, "{} is quantized already; leave out --quantize", stream_.reader().name());
    }
    const std::string config = MR_TRY(ConfigText());
    auto there = MR_TRY(FilesOfModel(target_.to, stream_.call()));
    std::vector<std::string> stale = StaleFiles(there);
    // The put of the index replaces the weights alone, not the files beside them. If these change too, remove the old
    // weights first: no model is better than the weights of one model with the tokenizer of another.
    if (!stale.empty() && !MR_TRY(SameBeside(there, files, config))) {
      MR_TRY(Remove(stale));
      for (const std::string& file : std::exchange(stale, {})) there.erase(file);
    }
    NameShards(there);
    Status written = WriteFolder(files, config);
    // If the put of the commit fails, it may have taken effect all the same: then an older index names the new shards.
    const bool may_be_committed = written && there.contains(CommitFile());
    if (written) written = Commit();
    if (!written) {
      if (!may_be_committed) RemoveNew(there, files);
      return std::unexpected(written.error());
    }
    std::erase(stale, CommitFile());
    MR_TRY(Remove(stale));
    return exported_;
  }

 private:
  using Files = std::map<std::string, object::ObjectInfo>;

  /// Returns the file whose put replaces the weights of the folder.
  std::string CommitFile() const { return std::string(shards_.size() > 1 ? names_.index : names_.single); }

  Status WriteFolder(const std::map<std::string, TensorMeta>& files, const std::string& config) {
    for (const auto& [file, meta] : files) MR_TRY(WriteFile(file, meta));
    for (const auto& [file, content] : further_) {
      MR_TRY(object::Put(*target_.to.store, target_.to.key + file, AsBytes(content), {}, stream_.call()));
      MR_TRY(Count(content.size()));
    }
    MR_TRY(PutJson(std::string(names_.config), config));
    std::vector<std::string> order;
    for (const Shard& shard : shards_) {
      for (const ShardTensor& tensor : shard.tensors) {
        if (tensor.streamed() != nullptr) order.push_back(group_ + *tensor.streamed());
      }
    }
    stream_.Announce(order);
    if (shards_.size() == 1) return {};
    for (const Shard& shard : shards_) MR_TRY(WriteShard(shard));
    return {};
  }

  /// Replaces the weights. Up to here no program reads the new shards, and all old shards are there. If the folder has
  /// both a single file and an index, some programs prefer the one and some the other. Both are whole until Remove.
  Status Commit() { return shards_.size() > 1 ? WriteIndex() : WriteShard(shards_[0]); }

  /// Removes what an export that failed wrote, except files that took the place of others. Ignores the stop token,
  /// which may have ended the export.
  void RemoveNew(const Files& there, const std::map<std::string, TensorMeta>& files) const {
    std::set<std::string> written = {std::string(names_.config), CommitFile()};
    for (const auto& [file, meta] : files) written.insert(file);
    for (const auto& [file, content] : further_) written.insert(file);
    for (const Shard& shard : shards_) written.insert(shard.file);
    std::vector<std::string> keys;
    for (const std::string& file : written) {
      if (!there.contains(file)) keys.push_back(target_.to.key + file);
    }
    (void)object::DeleteMany(*target_.to.store, std::move(keys));
  }

  Status Remove(const std::vector<std::string>& files) {
    for (const std::string& file : files)
      MR_TRY(object::Delete(*target_.to.store, target_.to.key + file, stream_.call()));
    return {};
  }

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

  /// Returns the parts that a weight is quantized to. Nothing if it stays as it is.
  std::vector<QuantizedPart> QuantizedTo(const SafetensorsEntry& entry) const {
    if (!quantization_ || !IsQuantizable(entry.name, entry.meta)) return {};
    TensorMeta meta = entry.meta;
    if (IsTurned(entry.name)) std::swap(meta.shape[0], meta.shape[1]);
    return PartsOf(entry.name, meta, *quantization_);
  }
  /// Returns whether the codes are those of the transpose of what the checkpoint holds.
  bool IsTurned(const std::string& weight) const { return has_transposed_blocks_ && !transposed_.contains(weight); }

  /// Sorts tensors by element size, largest first, as the writer of safetensors does. Quantized weights are last, with
  /// all their parts in one shard. Starts a new shard before one grows beyond target_.file_bytes.
  Status PlanShards(const std::map<std::string, TensorMeta>& tensors) {
    const engine::ModelFamily* family = config_ == nullptr ? nullptr : engine::FamilyOf(*config_);
    has_transposed_blocks_ = family != nullptr && family->names.transposed_blocks;
    // Heads that are tied to the embedding are in no file.
    if (family != nullptr) {
      for (const std::string_view name : family->names.tied_names) skipped_.insert(ModuleOf(std::string(name)));
    }
    std::vector<std::vector<ShardTensor>> units;  // what one shard has as a whole
    for (const auto& [name, meta] : tensors) {
      SafetensorsEntry entry{name, meta};
      std::vector<ShardTensor>& unit = units.emplace_back();
      if (quantization_ && IsQuantizable(name, meta)) quantized_from_ = meta.dtype;
      for (QuantizedPart& part : QuantizedTo(entry)) unit.push_back({part.entry, std::move(part)});
      if (!unit.empty()) continue;
      if (IsTransposed(entry)) std::swap(entry.meta.shape[0], entry.meta.shape[1]);
      if (quantization_ && meta.shape.size() == 2) skipped_.insert(ModuleOf(name));
      unit.push_back({std::move(entry)});
    }
    std::ranges::sort(units, {}, [](const std::vector<ShardTensor>& unit) {
      const ShardTensor& front = unit.front();
      const auto width = static_cast<std::int64_t>(DTypeBytes(front.entry.meta.dtype));
      return std::tuple(front.part.has_value(), -width, std::string_view(front.entry.name));
    });
    std::uint64_t bytes = 0;
    const bool one = names_.index.empty();
    for (std::vector<ShardTensor>& unit : units) {
      std::uint64_t size = 0;
      for (const ShardTensor& tensor : unit) size += tensor.entry.meta.bytes();
      bytes += size;
      if (shards_.empty() || (!one && bytes > target_.file_bytes)) {
        shards_.emplace_back();
        bytes = size;
      }
      std::ranges::move(unit, std::back_inserter(shards_.back().tensors));
    }
    for (Shard& shard : shards_) MR_TRY(Arrange(shard));
    return {};
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
    std::vector<SafetensorsEntry> entries;
    for (const ShardTensor& tensor : shard.tensors) entries.push_back(tensor.entry);
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + shard.file, {});
    const object::Call& call = stream_.call();
    MR_TRY(out.Write(AsBytes(MakeSafetensorsHeader(entries, {{"format", "pt"}})), call));
    std::map<std::string, WeightQuantizer> quantizers;  // by weight
    for (const ShardTensor& tensor : shard.tensors) {
      MR_TRY(tensor.part ? WritePart(tensor, quantizers, out) : WriteTensor(tensor.entry, out));
      parameters_ += tensor.entry.meta.elements();
      parameter_bytes_ += tensor.entry.meta.bytes();
    }
    exported_.tensors += entries.size();
    return Count(MR_TRY(out.Finish(call)).size);
  }

  Status WritePart(const ShardTensor& tensor, std::map<std::string, WeightQuantizer>& quantizers,
                   transfer::MultipartWriter& out) {
    const QuantizedPart& part = *tensor.part;
    const ByteSink sink = [&](ByteSpan bytes) { return out.Write(bytes, stream_.call()); };
    if (part.kind != QuantizedPart::Kind::kCodes) {
      QuantizedPart known = part;
      known.entry = tensor.entry;  // with its spaces
      return sink(AsBytes(quantizers.at(part.weight).TakeBytes(known)));
    }
    const std::string source = group_ + part.weight;
    TensorMeta meta = stream_.reader().manifest().tensors.at(source);
    const bool turned = IsTurned(part.weight);
    if (turned) std::swap(meta.shape[0], meta.shape[1]);
    WeightQuantizer& quantizer = quantizers.try_emplace(part.weight, *quantization_, meta).first->second;
    const ByteSink quantize = [&](ByteSpan bytes) { return quantizer.Add(bytes, sink); };
    const Status status = turned ? StreamTurned(source, meta, quantize) : stream_.Stream(source, quantize);
    if (!status) return Fail(status.error().Context(part.weight));
    return quantizer.Finish(sink);
  }

  bool IsTransposed(const SafetensorsEntry& entry) const {
    return entry.meta.shape.size() == 2 && transposed_.contains(entry.name);
  }

  Status WriteTensor(const SafetensorsEntry& entry, transfer::MultipartWriter& out) {
    const std::string tensor = group_ + entry.name;
    const ByteSink sink = [&](ByteSpan bytes) { return out.Write(bytes, stream_.call()); };
    return IsTransposed(entry) ? StreamTurned(tensor, entry.meta, sink) : stream_.Stream(tensor, sink);
  }

  /// Passes the transpose of a matrix on, which `meta` describes. Holds the matrix in memory twice.
  Status StreamTurned(const std::string& tensor, const TensorMeta& meta, const ByteSink& sink) {
    Buffer stored(meta.bytes()), turned(meta.bytes());
    std::uint64_t done = 0;
    MR_TRY(stream_.Stream(tensor, [&](ByteSpan bytes) -> Status {
      std::ranges::copy(bytes, stored.span().begin() + static_cast<std::ptrdiff_t>(done));
      done += bytes.size();
      return {};
    }));
    const auto rows = static_cast<std::uint64_t>(meta.shape[1]);  // of what is stored
    const auto columns = static_cast<std::uint64_t>(meta.shape[0]);
    Transpose(stored.span(), turned.span(), rows, columns, DTypeBytes(meta.dtype));
    return sink(turned.span());
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
    if (quantization_) {
      Json config = *config_;
      config["quantization_config"] =
          QuantizationConfig(*quantization_, {skipped_.begin(), skipped_.end()}, quantized_from_);
      return DumpJsonPretty(config) + "\n";
    }
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
      for (const ShardTensor& tensor : shard.tensors) sorted.emplace(tensor.entry.name, shard.file);
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
  const std::optional<engine::Quantization> quantization_;
  const ExportTarget& target_;
  const WeightsNames names_;
  const std::string group_;
  const std::string_view config_key_;
  std::map<std::string, std::string> further_;  ///< ExportOptions::files that the checkpoint does not have
  const Json* config_ = nullptr;
  std::set<std::string> transposed_;
  bool has_transposed_blocks_ = false;  ///< Hugging Face's files hold the transposes of their matrices
  DType quantized_from_ = DType::kF32;  ///< the type of weights that are quantized
  std::set<std::string> skipped_;       ///< modules whose matrices stay as they are, while others are quantized
  std::vector<Shard> shards_;
  std::uint64_t parameters_ = 0, parameter_bytes_ = 0;
  ExportResult exported_;
};

}  // namespace

Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files,
                                  std::optional<engine::Quantization> quantization) {
  return FolderExport(stream, target, adapter, files, quantization).Run();
}

}  // namespace millrace::checkpoint
