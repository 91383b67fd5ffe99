// A folder that torch.distributed.checkpoint's FileSystemReader loads.
#include <algorithm>

#include "millrace/base/digest.h"
#include "millrace/base/random.h"
#include "millrace/checkpoint/convert/dcp_names.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/tensor_stream.h"
#include "millrace/checkpoint/convert/torch_file.h"
#include "millrace/checkpoint/layout.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".distcp";

/// One archive in a file.
struct Stored {
  std::string file;
  std::uint64_t offset = 0, length = 0;
};
struct Entry {
  std::string fqn, path;
  const TensorMeta* tensor = nullptr;  ///< nullptr: a plain value
  const Json* value = nullptr;
  Stored stored;
};

/// Python's keys, joined by dots, as torch names what it flattens.
std::string FqnOf(const std::vector<PathKey>& path) {
  std::string fqn;
  for (const PathKey& key : path) {
    fqn += fqn.empty() ? "" : ".";
    fqn += key.kind == PathKey::Kind::kKey ? key.text : fmt::format("{}", key.number);
  }
  return fqn;
}

class MetadataWriter {
 public:
  std::string Write(const std::vector<Entry>& entries, const std::vector<std::vector<PathKey>>& paths) {
    Begin(kDcpModule, "Metadata");
    out_.Text("state_dict_metadata");
    out_.EmptyDict();
    out_.Mark();
    for (const Entry& entry : entries) {
      out_.Text(entry.fqn);
      entry.tensor != nullptr ? Tensor(*entry.tensor) : Plain();
    }
    out_.SetItems();
    out_.Text("planner_data");
    out_.EmptyDict();
    out_.Mark();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      out_.Text(entries[i].fqn);
      Path(paths[i]);
    }
    out_.SetItems();
    out_.Text("storage_data");
    out_.EmptyDict();
    out_.Mark();
    for (const Entry& entry : entries) StorageOf(entry);
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
  /// An object of a dataclass, whose members follow.
  void Begin(std::string_view module, std::string_view name) {
    out_.Global(module, name);
    out_.EmptyTuple();
    out_.NewObject();
    out_.EmptyDict();
    out_.Mark();
  }
  void End() {
    out_.SetItems();
    out_.Build();
  }
  template <class Numbers>
  void Size(const Numbers& numbers) {
    out_.Global("torch", "Size");
    out_.Mark();
    out_.IntTuple(numbers);
    out_.Tuple();
    out_.Reduce();
  }
  void Call(std::string_view module, std::string_view name, auto argument) {
    out_.Global(module, name);
    out_.Mark();
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
    out_.Mark();
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
    out_.Mark();
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
  void Path(const std::vector<PathKey>& path) {
    out_.Mark();
    for (const PathKey& key : path) {
      const bool index = key.kind == PathKey::Kind::kListIndex || key.kind == PathKey::Kind::kTupleIndex;
      if (index)
        out_.Int(key.number);
      else
        out_.Text(key.kind == PathKey::Kind::kKey ? key.text : fmt::format("{}", key.number));
    }
    out_.Tuple();
  }
  void StorageOf(const Entry& entry) {
    Begin(kDcpModule, "MetadataIndex");
    out_.Text("fqn");
    out_.Text(entry.fqn);
    out_.Text("offset");
    entry.tensor != nullptr ? Size(Origin(*entry.tensor)) : out_.None();
    out_.Text("index");
    entry.tensor != nullptr ? out_.Int(0) : out_.None();
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

  Result<Exported> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    const auto tensors = TensorsBelow(manifest, group_);
    const Json values = ValuesBelow(manifest, group_);
    if (tensors.empty()) return Fail(Code::kNotFound, "{} has no tensors named {}…", stream_.reader().name(), group_);
    for (const auto& [path, value] : values.items()) MR_TRY(AddEntry({.path = path, .value = &value}));
    for (const auto& [path, meta] : tensors) MR_TRY(AddEntry({.path = path, .tensor = &meta}));
    std::vector<std::string> order;
    for (const auto& [path, meta] : tensors) order.push_back(std::string(group_) + path);
    stream_.Announce(order);
    auto old = MR_TRY(FilesOf(target_.to, stream_.call()));
    MR_TRY(WriteFiles());
    const std::string metadata = MetadataWriter().Write(entries_, paths_);
    // The files have names of their own, so that this one put replaces an older checkpoint as a whole.
    MR_TRY(object::Put(*target_.to.store, target_.to.key + std::string(kDcpMetadataFile), AsBytes(metadata), {},
                       stream_.call()));
    std::vector<std::string> stale;
    for (const auto& [file, info] : old)
      if (file.ends_with(kSuffix)) stale.push_back(info.key);
    MR_TRY(object::DeleteMany(*target_.to.store, std::move(stale), stream_.call()));
    exported_.tensors = tensors.size();
    exported_.bytes += metadata.size();
    ++exported_.files;
    return exported_;
  }

 private:
  Status AddEntry(Entry entry) {
    paths_.push_back(MR_TRY(PathOf(entry.path)));
    entry.fqn = FqnOf(paths_.back());
    if (!names_.insert(entry.fqn).second) {
      return Fail(Code::kUnsupported, "two entries would be named {} by torch.distributed.checkpoint: export a group",
                  entry.fqn);
    }
    entries_.push_back(std::move(entry));
    return {};
  }

  Status WriteFiles() {
    for (std::size_t next = 0; next < entries_.size();) {
      const std::string file = fmt::format("__0_{}-{}{}", exported_.files, save_, kSuffix);
      transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key + file, {});
      std::uint64_t size = 0;
      const ByteSink sink = [&](ByteSpan bytes) {
        size += bytes.size();
        return out.Write(bytes, stream_.call());
      };
      do {
        Entry& entry = entries_[next++];
        const std::uint64_t begin = size;
        Status written = entry.tensor != nullptr ? WriteTensorArchive(entry, sink) : WriteValueArchive(entry, sink);
        if (!written) return Fail(written.error().Context(entry.path));
        entry.stored = {file, begin, size - begin};
      } while (next < entries_.size() && size + BytesOf(entries_[next]) <= target_.file_bytes);
      exported_.bytes += MR_TRY(out.Finish(stream_.call())).size;
      ++exported_.files;
    }
    return {};
  }
  static std::uint64_t BytesOf(const Entry& entry) { return entry.tensor != nullptr ? entry.tensor->bytes() : 0; }

  Status WriteTensorArchive(const Entry& entry, const ByteSink& sink) {
    PickleWriter pickle;
    WriteTensor(pickle, *entry.tensor, StorageKey(0));
    ZipWriter zip(sink);
    MR_TRY(BeginTorchArchive(zip, std::move(pickle).Finish()));
    MR_TRY(zip.Begin(StorageEntry(StorageKey(0)), entry.tensor->bytes()));
    MR_TRY(stream_.Stream(std::string(group_) + entry.path, [&](ByteSpan bytes) { return zip.Write(bytes); }));
    MR_TRY(zip.End());
    return EndTorchArchive(zip);
  }

  static Status WriteValueArchive(const Entry& entry, const ByteSink& sink) {
    // What only the program that saved it knows is an archive already.
    if (const Json* archive = JsonFind(*entry.value, "torch"); archive != nullptr && archive->is_string())
      return sink(MR_TRY(Base64Decode(archive->get_ref<const std::string&>())));
    PickleWriter pickle;
    MR_TRY(WriteValue(pickle, *entry.value));
    ZipWriter zip(sink);
    MR_TRY(BeginTorchArchive(zip, std::move(pickle).Finish()));
    return EndTorchArchive(zip);
  }

  TensorStream& stream_;
  const ExportTarget& target_;
  const std::string_view group_;
  const std::string save_;  ///< tells this export's files from those of every other
  std::vector<Entry> entries_;
  std::vector<std::vector<PathKey>> paths_;
  std::set<std::string> names_;
  Exported exported_;
};

}  // namespace

Result<Exported> ExportDcp(TensorStream& stream, const ExportTarget& target, std::string_view group) {
  return DcpExport(stream, target, group).Run();
}

}  // namespace millrace::checkpoint
