#include "millrace/checkpoint/convert/tensors/export_target.h"

#include <algorithm>
#include <set>
#include <variant>

#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/convert/tensors/group_view.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/dcp_names.h"
#include "millrace/checkpoint/convert/torch/state_tree.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/multipart_writer.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".distcp";

/// The place of one archive.
struct ArchivePlace {
  std::string file;
  std::uint64_t offset = 0, length = 0;
};
/// A key of a dict, or an index of a list, on torch's path to an entry.
using DcpKey = std::variant<std::string, std::int64_t>;
/// An entry of the flattened state.
struct DcpEntry {
  std::string fqn;           ///< torch's name: fully qualified name
  std::vector<DcpKey> path;  ///< torch's path
  StateNode node;            ///< a tensor, or a node that torch saves as one value; such a value may hold tensors
  ArchivePlace stored;
  const TensorMeta* tensor() const { return node.tensor; }
};

/// Returns torch's name of an entry: the keys of its path, joined by dots.
std::string FqnOf(const std::vector<DcpKey>& path) {
  std::string fqn;
  for (std::size_t i = 0; i < path.size(); ++i) {
    fqn += i == 0 ? "" : ".";
    fqn += std::visit([](const auto& key) { return fmt::format("{}", key); }, path[i]);
  }
  return fqn;
}

bool HasPathKeys(const StateNode& dict) {
  return std::ranges::none_of(dict.items, [](const StateNode::Item& item) { return item.part.empty(); });
}

/// Whether the node becomes one entry, as in traverse_state_dict of torch/distributed/checkpoint/_traverse.py. Empty
/// dicts become entries too, which torch leaves out, so that an import finds them. A dict with other keys than texts
/// and ints becomes one entry.
bool IsTerminal(const StateNode& node) {
  if (node.kind == StateNode::NodeKind::kDict) return node.items.empty() || !HasPathKeys(node);
  if (node.kind != StateNode::NodeKind::kList) return true;
  return std::ranges::none_of(node.items, [](const StateNode::Item& item) {
    const StateNode::NodeKind kind = (*item).kind;
    return kind == StateNode::NodeKind::kTensor || (kind == StateNode::NodeKind::kDict && HasPathKeys(*item)) ||
           (kind == StateNode::NodeKind::kList && !IsTerminal(*item));
  });
}

/// Adds the tensors of a node in the order of its pickle.
void AddTensors(const StateNode& node, std::vector<const StateNode*>& tensors) {
  if (node.kind == StateNode::NodeKind::kTensor) tensors.push_back(&node);
  for (const StateNode::Item& item : node.items) AddTensors(*item, tensors);
}
std::vector<const StateNode*> TensorsOf(const StateNode& node) {
  std::vector<const StateNode*> tensors;
  AddTensors(node, tensors);
  return tensors;
}

/// Writes the pickle of .metadata.
class MetadataWriter {
 public:
  std::string Write(const std::vector<DcpEntry>& entries) {
    Begin(kDcpModule, "Metadata");
    out_.Text("state_dict_metadata");
    out_.EmptyDict();
    out_.OpenMark();
    for (const DcpEntry& entry : entries) {
      out_.Text(entry.fqn);
      entry.tensor() != nullptr ? Tensor(*entry.tensor()) : Plain();
    }
    out_.SetItems();
    out_.Text("planner_data");
    out_.EmptyDict();
    out_.OpenMark();
    for (const DcpEntry& entry : entries) {
      out_.Text(entry.fqn);
      Path(entry.path);
    }
    out_.SetItems();
    out_.Text("storage_data");
    out_.EmptyDict();
    out_.OpenMark();
    for (const DcpEntry& entry : entries) StorageOf(entry);
    out_.SetItems();
    out_.Text("storage_meta");
    Begin(kDcpModule, "StorageMeta");
    for (const char* member : {"checkpoint_id", "save_id", "load_id"}) {
      out_.Text(member);
      out_.None();
    }
    out_.Text("modules");
    out_.EmptyList();
    End();
    out_.Text("version");
    out_.Text("1.0.0");
    End();
    return std::move(out_).Finish();
  }

 private:
  /// Begins an object of a dataclass. Its members follow.
  void Begin(std::string_view module, std::string_view name) {
    out_.Global(module, name);
    out_.EmptyTuple();
    out_.NewObject();
    out_.EmptyDict();
    out_.OpenMark();
  }
  void End() {
    out_.SetItems();
    out_.Build();
  }
  template <class Numbers>
  void Size(const Numbers& numbers) {
    out_.Global("torch", "Size");
    out_.OpenMark();
    out_.IntTuple(numbers);
    out_.Tuple();
    out_.Reduce();
  }
  void Call(std::string_view module, std::string_view name, auto argument) {
    out_.Global(module, name);
    out_.OpenMark();
    argument();
    out_.Tuple();
    out_.Reduce();
  }

  void Plain() {
    out_.Global(kDcpModule, "BytesStorageMetadata");
    out_.EmptyTuple();
    out_.NewObject();
  }
  void Tensor(const TensorMeta& meta) {
    Begin(kDcpModule, "TensorStorageMetadata");
    out_.Text("properties");
    out_.Global(kDcpModule, "TensorProperties");
    out_.EmptyTuple();
    out_.NewObject();
    out_.OpenMark();
    WriteDType(out_, meta.dtype);
    Call("torch.serialization", "_get_layout", [&] { out_.Text("torch.strided"); });
    out_.Bool(false);
    Call(kDcpModule, "_MEM_FORMAT_ENCODING", [&] { out_.Int(0); });
    out_.Bool(false);
    out_.Tuple();
    out_.Build();
    out_.Text("size");
    Size(meta.shape);
    out_.Text("chunks");
    out_.EmptyList();
    out_.OpenMark();
    Begin(kDcpModule, "ChunkStorageMetadata");
    out_.Text("offsets");
    Size(Origin(meta));
    out_.Text("sizes");
    Size(meta.shape);
    End();
    out_.Appends();
    End();
  }
  static std::vector<std::int64_t> Origin(const TensorMeta& meta) {
    return std::vector<std::int64_t>(meta.shape.size(), 0);
  }
  void Path(const std::vector<DcpKey>& path) {
    out_.OpenMark();
    for (const DcpKey& key : path) {
      if (const auto* text = std::get_if<std::string>(&key))
        out_.Text(*text);
      else
        out_.Int(std::get<std::int64_t>(key));
    }
    out_.Tuple();
  }
  void StorageOf(const DcpEntry& entry) {
    Begin(kDcpModule, "MetadataIndex");
    out_.Text("fqn");
    out_.Text(entry.fqn);
    out_.Text("offset");
    entry.tensor() != nullptr ? Size(Origin(*entry.tensor())) : out_.None();
    out_.Text("index");
    entry.tensor() != nullptr ? out_.Int(0) : out_.None();
    End();
    Begin("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    out_.Text("relative_path");
    out_.Text(entry.stored.file);
    out_.Text("offset");
    out_.Unsigned(entry.stored.offset);
    out_.Text("length");
    out_.Unsigned(entry.stored.length);
    End();
  }

  PickleWriter out_;
};

class DcpExport {
 public:
  DcpExport(TensorStream& stream, const ExportTarget& target, std::string_view group)
      : stream_(stream), target_(target), group_(group), save_(NewAttempt()) {}

  Result<ExportResult> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    const auto tensors = TensorsBelow(manifest, group_);
    Json values = ValuesBelow(manifest, group_);
    if (tensors.empty()) {
      return Fail(Code::kNotFound, "{} has no tensors named {}…; `millrace ckpt show` shows what it has",
                  stream_.reader().name(), group_);
    }
    values.erase(std::string(kMetaEntry));
    StateNode state = MR_TRY(BuildState(tensors, values, DictsBelow(manifest, group_)));
    const Json dicts = DescribeDicts(state);
    MR_TRY(AddItems(std::move(state), {}));
    if (group_.empty()) MR_TRY(AddMeta(manifest, dicts));
    std::vector<std::string> order;
    for (const DcpEntry& entry : entries_)
      for (const StateNode* tensor : TensorsOf(entry.node)) order.push_back(std::string(group_) + tensor->path);
    stream_.Announce(order);
    auto old = MR_TRY(FilesOf(target_.to, stream_.call()));
    Status written = WriteFiles();
    // If the put of the metadata fails, it may have taken effect all the same.
    const bool may_be_committed = written && old.contains(std::string(kDcpMetadataFile));
    if (written) written = WriteMetadata();
    if (!written) {
      if (!may_be_committed) RemoveWritten(old);
      return std::unexpected(written.error());
    }
    std::vector<std::string> stale;
    for (const auto& [file, info] : old)
      if (file.ends_with(kSuffix)) stale.push_back(info.key);
    MR_TRY(object::DeleteMany(*target_.to.store, std::move(stale), stream_.call()));
    exported_.tensors = tensors.size();
    return exported_;
  }

 private:
  Status WriteMetadata() {
    const std::string metadata = MetadataWriter().Write(entries_);
    // No file has the name of an older export's file, so this one put replaces an older checkpoint as a whole.
    MR_TRY(object::Put(*target_.to.store, target_.to.key + std::string(kDcpMetadataFile), AsBytes(metadata), {},
                       stream_.call()));
    exported_.bytes += metadata.size();
    ++exported_.files;
    return {};
  }

  /// Removes the files of an export that failed. Ignores the stop token, which may have ended the export.
  void RemoveWritten(const std::map<std::string, object::ObjectInfo>& old) const {
    std::vector<std::string> keys;
    if (!old.contains(std::string(kDcpMetadataFile))) keys.push_back(target_.to.key + std::string(kDcpMetadataFile));
    for (std::uint64_t i = 0; i <= exported_.files; ++i) keys.push_back(target_.to.key + FileName(i));
    (void)object::DeleteMany(*target_.to.store, std::move(keys));
  }

  std::string FileName(std::uint64_t index) const { return fmt::format("__0_{}-{}{}", index, save_, kSuffix); }

  /// Flattens a container as torch does: dicts, and lists that hold tensors or dicts, become several entries.
  Status AddItems(StateNode container, const std::vector<DcpKey>& path) {
    const bool list = container.kind == StateNode::NodeKind::kList;
    for (std::size_t i = 0; i < container.items.size(); ++i) {
      StateNode::Item& item = container.items[i];
      std::vector<DcpKey> below = path;
      if (list)
        below.emplace_back(static_cast<std::int64_t>(i));
      else
        below.emplace_back(item.key.is_string() ? item.key.get<std::string>() : DumpJson(item.key));
      StateNode& node = item.node.front();
      MR_TRY(IsTerminal(node) ? AddEntry(std::move(node), std::move(below)) : AddItems(std::move(node), below));
    }
    return {};
  }

  Status AddEntry(StateNode node, std::vector<DcpKey> path) {
    std::string fqn = FqnOf(path);
    if (!names_.insert(fqn).second) {
      return Fail(Code::kUnsupported, "two entries would be named {} by torch.distributed.checkpoint: export a group",
                  fqn);
    }
    // An import derives the checkpoint's path from torch's path, but torch's path has neither int keys nor tuples.
    std::string plain;
    for (const DcpKey& key : path) {
      plain += plain.empty() ? "" : "/";
      const auto* text = std::get_if<std::string>(&key);
      plain += text != nullptr ? PathPart(*text) : fmt::format("@{}", std::get<std::int64_t>(key));
    }
    if (plain != node.path) paths_.emplace_back(fqn, node.path);
    entries_.push_back({.fqn = std::move(fqn), .path = std::move(path), .node = std::move(node)});
    return {};
  }

  /// Adds the entry kMetaEntry: the rest of the checkpoint's meta, and the paths that an import cannot derive.
  Status AddMeta(const Manifest& manifest, const Json& dicts) {
    Json meta = manifest.meta.is_object() ? manifest.meta : Json::object();
    meta.erase(std::string(kMetaValues));
    meta.erase(std::string(kMetaDicts));
    if (!dicts.empty()) meta[std::string(kMetaDicts)] = dicts;
    if (!paths_.empty()) meta[std::string(kMetaPaths)] = Json::object_t(paths_.begin(), paths_.end());
    if (meta.empty()) return {};
    const std::string name(kMetaEntry);
    return AddEntry({.path = name, .value = DumpJson(meta)}, {name});
  }

  Status WriteFiles() {
    for (std::size_t next = 0; next < entries_.size();) {
      const std::string file = FileName(exported_.files);
      transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + file, {});
      std::uint64_t size = 0;
      const ByteSink sink = [&](ByteSpan bytes) {
        size += bytes.size();
        return out.Write(bytes, stream_.call());
      };
      do {
        DcpEntry& entry = entries_[next++];
        const std::uint64_t begin = size;
        Status written = entry.tensor() != nullptr ? WriteTensorArchive(entry, sink) : WriteValueArchive(entry, sink);
        if (!written) return Fail(written.error().Context(entry.fqn));
        entry.stored = {file, begin, size - begin};
      } while (next < entries_.size() && size + BytesOf(entries_[next]) <= target_.file_bytes);
      exported_.bytes += MR_TRY(out.Finish(stream_.call())).size;
      ++exported_.files;
    }
    return {};
  }
  static std::uint64_t BytesOf(const DcpEntry& entry) {
    std::uint64_t bytes = 0;
    for (const StateNode* node : TensorsOf(entry.node)) bytes += node->tensor->bytes();
    return bytes;
  }

  Status WriteTensorArchive(const DcpEntry& entry, const ByteSink& sink) {
    PickleWriter pickle;
    WriteTensor(pickle, *entry.tensor(), StorageKey(0));
    return WriteArchive(std::move(pickle).Finish(), {&entry.node}, sink);
  }

  Status WriteValueArchive(const DcpEntry& entry, const ByteSink& sink) {
    // A value that only the program that saved it can read was kept as its archive.
    if (const Json* archive = JsonFind(entry.node.value, "torch"); archive != nullptr && archive->is_string())
      return sink(MR_TRY(Base64Decode(archive->get_ref<const std::string&>())));
    const auto tensors = TensorsOf(entry.node);
    std::map<std::string, std::string> storages;
    for (const StateNode* tensor : tensors) storages.emplace(tensor->path, StorageKey(storages.size()));
    PickleWriter pickle;
    MR_TRY(WriteState(pickle, entry.node, storages));
    return WriteArchive(std::move(pickle).Finish(), tensors, sink);
  }

  /// Writes an archive with one storage for each tensor, in this order.
  Status WriteArchive(std::string pickle, const std::vector<const StateNode*>& tensors, const ByteSink& sink) {
    ZipWriter zip(sink);
    MR_TRY(BeginTorchArchive(zip, std::move(pickle)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      MR_TRY(zip.Begin(StorageEntry(StorageKey(i)), tensors[i]->tensor->bytes()));
      MR_TRY(stream_.Stream(std::string(group_) + tensors[i]->path, [&](ByteSpan bytes) { return zip.Write(bytes); }));
      MR_TRY(zip.End());
    }
    return EndTorchArchive(zip);
  }

  TensorStream& stream_;
  const ExportTarget& target_;
  const std::string_view group_;
  const std::string save_;  ///< a random part of the files' names, different in every export
  std::vector<DcpEntry> entries_;
  std::vector<std::pair<std::string, std::string>> paths_;  ///< fqn → path, if an import cannot derive the path
  std::set<std::string> names_;
  ExportResult exported_;
};

}  // namespace

Result<ExportResult> ExportDcp(TensorStream& stream, const ExportTarget& target, std::string_view group) {
  return DcpExport(stream, target, group).Run();
}

}  // namespace millrace::checkpoint
