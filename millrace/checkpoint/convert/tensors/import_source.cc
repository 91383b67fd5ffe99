#include "millrace/checkpoint/convert/tensors/import_source.h"

#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Bounds the memory for a listing. A guess: DCP writes about one file a rank.
constexpr std::size_t kMaxFiles = 100'000;

}  // namespace

std::uint64_t ImportSource::TensorBytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [tensor, tensor_meta] : tensors) bytes += tensor_meta.bytes();
  return bytes;
}

void ImportSource::Rename(const std::function<std::optional<std::string>(const std::string&)>& renamed) {
  std::map<std::string, std::optional<std::string>> names;
  std::map<std::string, TensorMeta> kept;
  for (auto& [tensor, tensor_meta] : tensors) {
    const auto& to = names[tensor] = renamed(tensor);
    if (to) kept.emplace(*to, std::move(tensor_meta));
  }
  tensors = std::move(kept);
  std::erase_if(boxes, [&](const SourceBox& box) { return !names.at(box.tensor); });
  for (SourceBox& box : boxes) box.tensor = *names.at(box.tensor);
}

Status TakeValues(std::map<std::string, Json> values, std::map<std::string, Json> dicts, ImportSource& source) {
  if (auto meta = values.extract(std::string(kMetaEntry)); !meta.empty()) {
    if (!meta.mapped().is_string()) return Fail(Code::kCorrupt, "{}: {} is not a text", source.name, kMetaEntry);
    source.meta = MR_TRY(ParseJson(meta.mapped().get_ref<const std::string&>(), kMetaEntry));
    if (!source.meta.is_object()) return Fail(Code::kCorrupt, "{}: {} is not a JSON object", source.name, kMetaEntry);
    source.meta.erase(std::string(kMetaPaths));
    // The descriptions that an export wrote win: they also know OrderedDicts, which names of entries do not tell.
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
        return files.size() <= kMaxFiles;
      },
      call));
  if (files.size() > kMaxFiles)
    return Fail(Code::kResourceExhausted, "{} has more than {} files", NameOf(folder), kMaxFiles);
  return files;
}

}  // namespace millrace::checkpoint
