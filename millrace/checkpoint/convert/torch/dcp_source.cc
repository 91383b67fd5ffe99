#include "millrace/checkpoint/convert/torch/dcp_source.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/dcp_names.h"
#include "millrace/checkpoint/convert/torch/torch_dtypes.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/tensor_meta.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

using ValueKind = Pickle::ValueKind;
using Value = Pickle::Value;

/// The largest .metadata: Pickle::Limits::bytes.
constexpr std::uint64_t kMaxMetadata = 256 * kMiB;
/// The largest value that is kept as a torch.save archive. A bound, since it becomes text in the manifest; a guess.
constexpr std::uint64_t kMaxValue = 64 * kMiB;
/// The bytes to prefetch from both ends of a tensor's archive, where its headers and its directory are. A guess: they
/// cover archives of one tensor.
constexpr std::uint64_t kArchiveEnd = 4 * kKiB;
/// The bytes to prefetch from the front of a plain value's archive. A guess: most archives of values are smaller.
constexpr std::uint64_t kValueArchive = 16 * kKiB;

/// The globals that .metadata may name, sorted.
constexpr std::string_view kGlobals[] = {
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "torch.Size",
    "torch.bfloat16",
    "torch.bool",
    "torch.complex128",
    "torch.complex64",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.float16",
    "torch.float32",
    "torch.float64",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.int8",
    "torch.serialization._get_layout",
    "torch.uint16",
    "torch.uint32",
    "torch.uint64",
    "torch.uint8",
};

/// One archive of the folder: a chunk of a tensor, or another value.
struct StoredArchive {
  bool is_tensor = false;  ///< false for a plain value or a tuple with tensors
  std::string path, fqn;   ///< the entry's path in the checkpoint and its name in torch
  Box box;                 ///< of a tensor: the chunk
  std::string file;
  std::uint64_t offset = 0, length = 0;
};

/// The content of .metadata, besides the archives. An fqn is a fully qualified name, torch's name of an entry.
struct DcpMetadata {
  std::map<std::string, TensorMeta> tensors;                                                       ///< by fqn
  std::map<std::string, std::map<std::vector<std::uint64_t>, std::vector<std::uint64_t>>> chunks;  ///< offset → sizes
  std::map<std::string, std::string> paths;                                                        ///< fqn → path
  std::vector<std::string> order;                                                                  ///< fqns
};

class MetadataReader {
 public:
  /// `any_class`: the root may be of another class than torch's Metadata.
  MetadataReader(const Pickle& pickle, bool any_class) : pickle_(pickle), any_class_(any_class) {}

  Status Read(DcpMetadata& described, std::vector<StoredArchive>& items) {
    const Value& root = pickle_.root();
    const Value* tensors = pickle_.Member(root, "state_dict_metadata");
    const Value* storage = pickle_.Member(root, "storage_data");
    if ((!any_class_ && !pickle_.IsCall(root, kDcpMetadata)) || tensors == nullptr || storage == nullptr ||
        tensors->kind != ValueKind::kDict || storage->kind != ValueKind::kDict) {
      return Fail(Code::kCorrupt, "the pickle is not a Metadata of torch.distributed.checkpoint");
    }
    const Value* planner = pickle_.Member(root, "planner_data");
    if (planner != nullptr && planner->kind == ValueKind::kDict) MR_TRY(ReadPaths(*planner, described));
    for (std::size_t i = 0; i + 1 < tensors->items.size(); i += 2) {
      const std::string fqn = MR_TRY(Text(tensors->items[i]));
      described.paths.emplace(fqn, PathPart(fqn));
      described.order.push_back(fqn);
      Status read = ReadTensor(pickle_[tensors->items[i + 1]], fqn, described);
      if (!read) return Fail(read.error().Context(fqn));
    }
    for (std::size_t i = 0; i + 1 < storage->items.size(); i += 2) {
      auto item = ReadItem(pickle_[storage->items[i]], pickle_[storage->items[i + 1]], described);
      if (!item) return Fail(item.error());
      items.push_back(*std::move(item));
    }
    return {};
  }

 private:
  Result<std::string> Text(Pickle::Id id) const {
    if (pickle_[id].kind != ValueKind::kText) return Fail(Code::kCorrupt, "an entry's name is not a text");
    return pickle_[id].text;
  }
  Result<std::vector<std::uint64_t>> Sizes(const Value* size) const {
    if (size == nullptr || !pickle_.IsCall(*size, "torch.Size") || pickle_.Arguments(*size).size() != 1)
      return Fail(Code::kCorrupt, "a size or offset is not a torch.Size");
    std::vector<std::uint64_t> sizes;
    for (const Pickle::Id item : pickle_[pickle_.Arguments(*size)[0]].items) {
      if (pickle_[item].kind != ValueKind::kInt || pickle_[item].number < 0)
        return Fail(Code::kCorrupt, "a size or offset is not a tuple of ints");
      sizes.push_back(static_cast<std::uint64_t>(pickle_[item].number));
    }
    return sizes;
  }
  Result<std::uint64_t> Number(const Value& from, std::string_view member) const {
    const Value* number = pickle_.Member(from, member);
    if (number == nullptr || number->kind != ValueKind::kInt || number->number < 0)
      return Fail(Code::kCorrupt, "{} is not a number", member);
    return static_cast<std::uint64_t>(number->number);
  }

  Status ReadPaths(const Value& planner, DcpMetadata& described) const {
    for (std::size_t i = 0; i + 1 < planner.items.size(); i += 2) {
      const Value& path = pickle_[planner.items[i + 1]];
      if (path.kind != ValueKind::kTuple && path.kind != ValueKind::kList) continue;
      std::string name;
      for (const Pickle::Id item : path.items) {
        const Value& key = pickle_[item];
        if (key.kind != ValueKind::kText && key.kind != ValueKind::kInt)
          return Fail(Code::kCorrupt, "a key of a path is neither a text nor an int");
        name += name.empty() ? "" : "/";
        name += key.kind == ValueKind::kText ? PathPart(key.text) : fmt::format("@{}", key.number);
      }
      if (!name.empty()) described.paths.emplace(MR_TRY(Text(planner.items[i])), std::move(name));
    }
    return {};
  }

  Status ReadTensor(const Value& value, const std::string& fqn, DcpMetadata& described) const {
    if (pickle_.IsCall(value, kDcpBytes)) return {};
    const Value* properties = pickle_.Member(value, "properties");
    const Value* chunks = pickle_.Member(value, "chunks");
    if (!pickle_.IsCall(value, kDcpTensor) || properties == nullptr || chunks == nullptr ||
        chunks->kind != ValueKind::kList || properties->kind != ValueKind::kCall ||
        properties->state == Pickle::kNone || pickle_[properties->state].items.empty()) {
      return Fail(Code::kCorrupt, "the entry is not a TensorStorageMetadata of torch");
    }
    const std::string& type = pickle_[pickle_[properties->state].items[0]].text;
    const TorchDType* dtype = FindTorchDType(type);
    if (dtype == nullptr) return Fail(Code::kUnsupported, "safetensors has no element type for {}", type);
    const auto size = MR_TRY(Sizes(pickle_.Member(value, "size")));
    TensorMeta meta{dtype->dtype, {size.begin(), size.end()}};
    MR_TRY(meta.Check(fqn));
    described.tensors[fqn] = std::move(meta);
    for (const Pickle::Id id : chunks->items) {
      auto offsets = MR_TRY(Sizes(pickle_.Member(pickle_[id], "offsets")));
      described.chunks[fqn][std::move(offsets)] = MR_TRY(Sizes(pickle_.Member(pickle_[id], "sizes")));
    }
    return {};
  }

  Result<StoredArchive> ReadItem(const Value& index, const Value& info, const DcpMetadata& described) const {
    const Value* name = pickle_.Member(index, "fqn");
    const Value* file = pickle_.Member(info, "relative_path");
    if (name == nullptr || name->kind != ValueKind::kText || file == nullptr || file->kind != ValueKind::kText)
      return Fail(Code::kCorrupt, "an archive has no name or no file");
    const std::string& fqn = name->text;
    if (const Value* transforms = pickle_.Member(info, "transform_descriptors");
        transforms != nullptr && !transforms->items.empty()) {
      return Fail(Code::kUnsupported, "{} was written with extensions (compression), which this program lacks", fqn);
    }
    auto path = described.paths.find(fqn);
    if (path == described.paths.end()) return Fail(Code::kCorrupt, "{} has bytes, but no description", fqn);
    const std::uint64_t offset = MR_TRY(Number(info, "offset")), length = MR_TRY(Number(info, "length"));
    StoredArchive item{.file = file->text, .offset = offset, .length = length};
    item.fqn = fqn;
    item.path = path->second;
    if (!described.tensors.contains(fqn)) return item;
    item.is_tensor = true;
    const auto& chunks = described.chunks.at(fqn);
    const auto chunk = chunks.find(MR_TRY(Sizes(pickle_.Member(index, "offset"))));
    if (chunk == chunks.end()) return Fail(Code::kCorrupt, "{}: a chunk has bytes, but no description", fqn);
    item.box = {chunk->first, chunk->second};
    return item;
  }

  const Pickle& pickle_;
  const bool any_class_;
};

/// The content of one archive.
struct ArchiveContent {
  std::vector<SourceBox> boxes;
  std::vector<SourceChecksum> checksums;
  std::map<std::string, TensorMeta> tensors;  ///< by path: tensors in a tuple
  std::map<std::string, Json> values, dicts;  ///< by path
};

Result<const object::ObjectInfo*> FileOf(const ImportSource& source, const StoredArchive& item) {
  const auto file = source.files.find(item.file);
  if (file == source.files.end() || item.offset > file->second.size || item.length > file->second.size - item.offset)
    return Fail(Code::kCorrupt, "{}: {} is missing, or shorter than it was", source.name, item.file);
  return &file->second;
}

class DcpReader {
 public:
  DcpReader(ImportSource& source, object::Call call) : source_(source), call_(std::move(call)) {}

  /// Opens all archives and returns their contents in the same order. Prefetches the headers of many archives in few
  /// requests: the end of one archive and the start of the next one are neighbours.
  Result<std::vector<ArchiveContent>> OpenAll(const std::vector<StoredArchive>& items) const {
    std::vector<std::size_t> order(items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {},
                      [&](std::size_t i) { return std::pair(std::string_view(items[i].file), items[i].offset); });
    std::vector<ArchiveContent> opened(items.size());
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      std::vector<Prefetched::ObjectRange> ranges;
      for (; end < order.size() && ranges.size() + 2 <= kPrefetch; ++end) MR_TRY(AddRanges(items[order[end]], ranges));
      auto prefetched = MR_TRY(Prefetched::Get(*source_.folder.store, std::move(ranges), call_));
      const auto shared = std::make_shared<const Prefetched>(std::move(prefetched));
      for (std::size_t i = begin; i < end; ++i) opened[order[i]] = MR_TRY(Open(items[order[i]], shared));
    }
    return opened;
  }

 private:
  /// Adds the ranges at both ends of an archive.
  Status AddRanges(const StoredArchive& item, std::vector<Prefetched::ObjectRange>& ranges) const {
    const object::ObjectInfo* file = MR_TRY(FileOf(source_, item));
    const std::uint64_t head = std::min(item.length, item.is_tensor ? kArchiveEnd : kValueArchive);
    const std::uint64_t tail = std::min(item.length - head, kArchiveEnd);
    if (head > 0) ranges.push_back({file, item.offset, head});
    if (tail > 0) ranges.push_back({file, item.offset + item.length - tail, tail});
    return {};
  }

  Result<ArchiveContent> Open(const StoredArchive& item, const std::shared_ptr<const Prefetched>& prefetched) const {
    const object::ObjectInfo* file = MR_TRY(FileOf(source_, item));
    ObjectBytes bytes(*source_.folder.store, *file, item.offset, item.length, call_, prefetched);
    if (!item.is_tensor) return OpenValue(item, bytes);
    const TorchArchive archive = MR_TRY(TorchArchive::Open(bytes));
    auto tensor = MR_TRY(TensorOf(archive.pickle(), archive.pickle().root()));
    const TensorMeta& whole = source_.tensors.at(item.path);
    const std::vector<std::int64_t> shape(item.box.lengths.begin(), item.box.lengths.end());
    if (!tensor || tensor->meta.dtype != whole.dtype || tensor->meta.shape != shape)
      return Fail(Code::kCorrupt, "{}: not the chunk of {} that .metadata describes", bytes.name(), item.path);
    if (tensor->meta.elements() == 0) return ArchiveContent{};
    const auto storage = archive.StorageOf(*tensor);
    if (!storage) return Fail(storage.error().Context(bytes.name()));
    ArchiveContent opened;
    opened.boxes.push_back(
        {item.path, item.box, item.file, item.offset + storage->offset + tensor->offset, std::move(tensor->strides)});
    AddChecksum(item, *storage, opened);
    return opened;
  }

  static void AddChecksum(const StoredArchive& item, const TorchArchive::Storage& storage, ArchiveContent& opened) {
    if (storage.crc32 != 0)
      opened.checksums.push_back({item.file, item.offset + storage.offset, storage.size, storage.crc32});
  }

  /// Reads a plain value or a tuple with tensors. Keeps the whole archive if only the program that saved it can read
  /// it.
  static Result<ArchiveContent> OpenValue(const StoredArchive& item, RandomBytes& bytes) {
    auto archive = TorchArchive::Open(bytes);
    auto state = archive ? PartOf(archive->pickle(), item.path) : Result<TorchState>(Fail(archive.error()));
    if (state) return OpenParts(item, bytes, *archive, *std::move(state));
    if (state.error().code() != Code::kUnsupported) return Fail(state.error().Context(bytes.name()));
    if (bytes.size() > kMaxValue)
      return Fail(Code::kResourceExhausted, "{}: a value of more than 64 MiB", bytes.name());
    std::string all(bytes.size(), '\0');
    MR_TRY(bytes.ReadAt(0, AsWritableBytes(all)));
    ArchiveContent opened;
    opened.values.emplace(item.path, Json{{"torch", Base64Encode(AsBytes(all))}});
    return opened;
  }

  static Result<ArchiveContent> OpenParts(const StoredArchive& item, const RandomBytes& bytes,
                                          const TorchArchive& archive, TorchState state) {
    ArchiveContent opened{.values = std::move(state.values), .dicts = std::move(state.dicts)};
    const auto storages = MR_TRY(archive.StoragesOf(state.tensors));
    for (const auto& [name, storage] : storages) AddChecksum(item, storage, opened);
    for (auto& [path, tensor] : state.tensors) {
      if (tensor.meta.elements() > 0) {
        const TorchArchive::Storage& storage = storages.at(tensor.storage);
        if (storage.size != tensor.storage_bytes)
          return Fail(Code::kCorrupt, "{}: storage {} has two sizes", bytes.name(), tensor.storage);
        opened.boxes.push_back(
            {path, {}, item.file, item.offset + storage.offset + tensor.offset, std::move(tensor.strides)});
      }
      opened.tensors.emplace(path, std::move(tensor.meta));
    }
    return opened;
  }

  const ImportSource& source_;
  const object::Call call_;
};

/// Passes the archives that are not tensors to the visitor, and removes them from `items`.
Status VisitValues(const ImportSource& source, const DcpVisitor& visitor, std::vector<StoredArchive>& items,
                   const object::Call& call) {
  for (const StoredArchive& item : items) {
    if (item.is_tensor) continue;
    const object::ObjectInfo* file = MR_TRY(FileOf(source, item));
    ObjectBytes bytes(*source.folder.store, *file, item.offset, item.length, call);
    MR_TRY(visitor.on_value(item.fqn, bytes));
  }
  std::erase_if(items, [](const StoredArchive& item) { return !item.is_tensor; });
  return {};
}

/// Returns kMetaDicts. torch writes entries in the order in which it meets them, so their order is that of the dicts.
std::map<std::string, Json> DictsOf(const DcpMetadata& described) {
  std::map<std::string, std::vector<std::string>> parts;  // of each dict, by its path
  std::set<std::string, std::less<>> known;
  for (const std::string& fqn : described.order) {
    const std::string& path = described.paths.at(fqn);
    if (path == kMetaEntry) continue;
    for (std::size_t at = 0; at != path.npos;) {
      const std::size_t end = path.find('/', at == 0 ? 0 : at + 1);
      if (known.insert(path.substr(0, end)).second) {
        const std::size_t begin = at == 0 ? 0 : at + 1;
        parts[path.substr(0, at)].push_back(path.substr(begin, end == path.npos ? end : end - begin));
      }
      at = end;
    }
  }
  std::map<std::string, Json> dicts;
  for (const auto& [path, of_dict] : parts) {
    if (of_dict.front().starts_with('@')) continue;
    if (auto dict = DescribeDict(of_dict, false)) dicts.emplace(path, *std::move(dict));
  }
  return dicts;
}

/// Replaces paths by those of kMetaPaths, which an export wrote because they do not follow from torch's names.
Status TakePaths(ImportSource& source, DcpMetadata& described, std::vector<StoredArchive>& items,
                 const object::Call& call) {
  const auto meta = std::ranges::find(items, kMetaEntry, &StoredArchive::path);
  if (meta == items.end() || meta->is_tensor) return {};
  auto opened = MR_TRY(DcpReader(source, call).OpenAll({*meta}));
  const auto said = opened.front().values.find(std::string(kMetaEntry));
  if (said == opened.front().values.end() || !said->second.is_string()) return {};
  const Json parsed = MR_TRY(ParseJson(said->second.get_ref<const std::string&>(), kMetaEntry));
  const Json* paths = JsonFind(parsed, kMetaPaths);
  if (paths == nullptr || !paths->is_object()) return {};
  for (const auto& [fqn, path] : paths->items()) {
    const std::string text = path.is_string() ? path.get<std::string>() : "";
    if (text.empty() || ("/" + text + "/").contains("//"))
      return Fail(Code::kCorrupt, "{}: {} has no path", source.name, fqn);
    if (described.paths.contains(fqn)) described.paths[fqn] = text;
  }
  for (StoredArchive& item : items) item.path = described.paths.at(item.fqn);
  return {};
}

}  // namespace

Result<ImportSource> OpenDcpFolder(const object::Location& folder, object::Call call, const DcpVisitor* visitor) {
  ImportSource source{.format = ForeignFormat::kDcp, .folder = folder, .name = NameOf(folder)};
  source.files = MR_TRY(FilesOf(folder, call));
  const std::string what = fmt::format("{}/{}", source.name, kDcpMetadataFile);
  auto content = MR_TRY(object::GetAll(*folder.store, folder.key + std::string(kDcpMetadataFile), kMaxMetadata, call));
  if (!content) {
    return Fail(Code::kNotFound,
                "{} does not exist: this is no folder of torch.distributed.checkpoint, or its save was interrupted; "
                "take an earlier one",
                what);
  }
  const Pickle pickle = MR_TRY(visitor != nullptr ? Pickle::ReadWithObjects(content->bytes, what)
                                                  : Pickle::Read(content->bytes, kGlobals, what));
  DcpMetadata described;
  std::vector<StoredArchive> items;
  if (Status read = MetadataReader(pickle, visitor != nullptr).Read(described, items); !read)
    return Fail(read.error().Context(what));
  if (visitor != nullptr) {
    if (Status seen = visitor->on_metadata(pickle); !seen) return Fail(seen.error().Context(what));
    MR_TRY(VisitValues(source, *visitor, items, call));
  }
  MR_TRY(TakePaths(source, described, items, call));
  for (auto& [fqn, meta] : described.tensors) {
    if (!source.tensors.emplace(described.paths.at(fqn), std::move(meta)).second)
      return Fail(Code::kCorrupt, "{}: {} is there twice", what, fqn);
  }
  auto opened = MR_TRY(DcpReader(source, std::move(call)).OpenAll(items));
  std::map<std::string, Json> values, dicts = DictsOf(described);
  for (ArchiveContent& one : opened) {
    std::ranges::move(one.checksums, std::back_inserter(source.checksums));
    std::ranges::move(one.boxes, std::back_inserter(source.boxes));
    values.merge(one.values);
    dicts.merge(one.dicts);
    source.tensors.merge(one.tensors);
    if (!one.values.empty() || !one.tensors.empty()) return Fail(Code::kCorrupt, "{}: a name is there twice", what);
  }
  MR_TRY(TakeValues(std::move(values), std::move(dicts), source));
  return source;
}

}  // namespace millrace::checkpoint
