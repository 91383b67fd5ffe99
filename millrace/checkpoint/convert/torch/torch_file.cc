#include "millrace/checkpoint/convert/torch/torch_file.h"

#include <algorithm>

#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The largest pickle: Pickle::Limits::bytes.
constexpr std::uint64_t kMaxPickle = 256 * kMiB;
/// The largest "byteorder" entry: it holds "little" or "big".
constexpr std::uint64_t kMaxSmall = 64;
constexpr std::string_view kPickleName = "data.pkl", kArchive = "archive/";

/// Returns the folder of data.pkl, with its slash. torch names the folder after the file.
Result<std::string> FolderOf(const Zip& zip) {
  for (const ZipEntry& entry : zip.entries()) {
    const std::string_view name = entry.name;
    const std::size_t slash = name.find('/');
    if (slash != name.npos && name.substr(slash + 1) == kPickleName) return std::string(name.substr(0, slash + 1));
  }
  return Fail(Code::kUnsupported, "a ZIP archive without data.pkl: torch.save did not write it");
}

}  // namespace

Result<TorchArchive> TorchArchive::Open(RandomBytes& bytes, PickledObjects objects) {
  Zip zip = MR_TRY(Zip::Open(bytes));
  auto folder = FolderOf(zip);
  if (!folder) return Fail(folder.error().Context(bytes.name()));
  if (const ZipEntry* order = zip.Find(*folder + "byteorder")) {
    if (MR_TRY(zip.ReadAll(*order, kMaxSmall)) != "little")
      return Fail(Code::kUnsupported, "{}: a big-endian machine wrote it", bytes.name());
  }
  const std::string content = MR_TRY(zip.ReadAll(*zip.Find(*folder + std::string(kPickleName)), kMaxPickle));
  Pickle pickle = MR_TRY(objects == PickledObjects::kNamed ? Pickle::ReadWithObjects(content, bytes.name())
                                                           : Pickle::Read(content, TorchGlobals(), bytes.name()));
  return TorchArchive(bytes, std::move(zip), *std::move(folder), std::move(pickle));
}

const ZipEntry* TorchArchive::EntryOf(const TorchTensor& tensor) const {
  return zip_.Find(fmt::format("{}data/{}", folder_, tensor.storage));
}

Result<TorchArchive::Storage> TorchArchive::StorageOf(const TorchTensor& tensor) const {
  const ZipEntry* entry = EntryOf(tensor);
  if (entry == nullptr) return Fail(Code::kCorrupt, "the storage {} is missing", tensor.storage);
  if (entry->size != tensor.storage_bytes) {
    return Fail(Code::kCorrupt, "the storage {} has {} bytes instead of {}", tensor.storage, entry->size,
                tensor.storage_bytes);
  }
  return Storage{MR_TRY(zip_.DataOffset(*entry)), entry->size, entry->crc32};
}

Result<std::map<std::string, TorchArchive::Storage>> TorchArchive::StoragesOf(
    const std::map<std::string, TorchTensor>& tensors) const {
  std::map<std::string, const std::pair<const std::string, TorchTensor>*> users;  // one tensor of each storage
  for (const auto& tensor : tensors)
    if (tensor.second.meta.elements() > 0) users.emplace(tensor.second.storage, &tensor);
  std::map<std::string, Storage> storages;
  for (auto begin = users.begin(), end = begin; begin != users.end(); begin = end) {
    std::vector<object::ByteRange> headers;
    for (; end != users.end() && headers.size() < kPrefetch; ++end) {
      if (const ZipEntry* entry = EntryOf(end->second->second)) headers.push_back(Zip::HeaderOf(*entry));
    }
    MR_TRY(bytes_->WillRead(headers));
    for (; begin != end; ++begin) {
      const auto& [path, tensor] = *begin->second;
      auto storage = StorageOf(tensor);
      if (!storage) return Fail(storage.error().Context(fmt::format("{}: tensor {}", bytes_->name(), path)));
      storages.emplace(begin->first, *storage);
    }
  }
  return storages;
}

Status AddTorchState(RandomBytes& bytes, const std::string& file, std::string_view group, ImportSource& source) {
  const TorchArchive archive = MR_TRY(TorchArchive::Open(bytes));
  auto state = StateOf(archive.pickle());
  if (!state) return Fail(state.error().Context(bytes.name()));
  const auto storages = MR_TRY(archive.StoragesOf(state->tensors));
  for (const auto& [name, storage] : storages) {
    if (storage.crc32 != 0) source.checksums.push_back({file, storage.offset, storage.size, storage.crc32});
  }
  for (auto& [path, tensor] : state->tensors) {
    std::string name = std::string(group) + path;
    if (tensor.meta.elements() > 0) {
      const TorchArchive::Storage& storage = storages.at(tensor.storage);
      if (storage.size != tensor.storage_bytes)
        return Fail(Code::kCorrupt, "{}: storage {} has two sizes", bytes.name(), tensor.storage);
      source.boxes.push_back({name, {}, file, storage.offset + tensor.offset, std::move(tensor.strides)});
    }
    if (!source.tensors.emplace(name, std::move(tensor.meta)).second)
      return Fail(Code::kCorrupt, "{}: tensor {} is in another file too", bytes.name(), path);
  }
  return TakeValues(std::move(state->values), std::move(state->dicts), source);
}

Result<ImportSource> OpenTorchFile(const object::Location& file, object::Call call) {
  auto info = MR_TRY(object::Head(*file.store, file.key, call));
  if (!info) {
    return Fail(Code::kNotFound, "{}/{} does not exist; `millrace ls` lists what is there", file.store->Describe(),
                file.key);
  }
  const std::size_t slash = file.key.rfind('/');
  const std::string name = file.key.substr(slash == file.key.npos ? 0 : slash + 1);
  ImportSource source{.format = ForeignFormat::kTorch,
                      .folder = {file.store, file.key.substr(0, file.key.size() - name.size())},
                      .name = NameOf(file)};
  ObjectBytes bytes(*file.store, *info, 0, info->size, std::move(call));
  source.files.emplace(name, *std::move(info));
  MR_TRY(AddTorchState(bytes, name, "", source));
  return source;
}

std::string StorageKey(std::size_t number) { return fmt::format("{}", number); }
std::string StorageEntry(std::string_view key) { return fmt::format("{}data/{}", kArchive, key); }

Status BeginTorchArchive(ZipWriter& zip, std::string_view pickle) {
  const std::string archive(kArchive);
  MR_TRY(zip.Add(archive + std::string(kPickleName), pickle));
  MR_TRY(zip.Add(archive + ".format_version", "1"));
  MR_TRY(zip.Add(archive + ".storage_alignment", "64"));
  return zip.Add(archive + "byteorder", "little");
}

Status EndTorchArchive(ZipWriter& zip) {
  MR_TRY(zip.Add(std::string(kArchive) + "version", "3\n"));
  MR_TRY(zip.Finish());
  return {};
}

}  // namespace millrace::checkpoint
