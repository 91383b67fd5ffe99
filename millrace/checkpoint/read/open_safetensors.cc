#include "millrace/checkpoint/read/open_safetensors.h"

#include <algorithm>
#include <set>

#include "millrace/base/files/confine.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kConfig = "config.json";
/// Bounds on memory. Guesses, far above real folders.
constexpr std::size_t kMaxFiles = 10'000;
constexpr std::uint64_t kMaxIndexBytes = 100 * kMiB, kMaxConfigBytes = 1 * kMiB;
/// The first read of a shard. A guess: it covers the header of most shards, so that one request is enough.
constexpr std::uint64_t kFirstRead = 256 * kKiB;

class FolderReader {
 public:
  FolderReader(object::Location folder, std::string name, object::Call call)
      : store_(*folder.store), folder_(std::move(folder.key)), name_(std::move(name)), call_(std::move(call)) {}

  Result<Manifest> Read(const std::vector<std::string>& files) {
    for (const std::string& file : files) MR_TRY(AddFile(file));
    MR_TRY(AddConfig());
    MR_TRY(manifest_.Check(name_));
    return std::move(manifest_);
  }

  /// Returns the files to read, by the rules in open_safetensors.h.
  Result<std::vector<std::string>> FindFiles() {
    std::vector<std::string> files;
    bool indexed = false;
    MR_TRY(object::ListAll(
        store_, {.prefix = folder_, .delimiter = "/"},
        [&](const object::ListPage& page) {
          for (const object::ObjectInfo& object : page.objects) {
            std::string file = object.key.substr(folder_.size());
            indexed = indexed || file == kIndex;
            if (file.ends_with(kSuffix)) files.push_back(std::move(file));
          }
          return files.size() <= kMaxFiles;
        },
        call_));
    // An index beside a single file is what an earlier, larger save left behind.
    if (std::find(files.begin(), files.end(), kSingle) != files.end()) return std::vector{std::string(kSingle)};
    if (indexed) return FilesOfIndex();
    if (files.empty()) {
      return Fail(Code::kNotFound, "{} has no *.safetensors files; name the folder of a model of Hugging Face", name_);
    }
    if (files.size() > kMaxFiles) return Fail(Code::kResourceExhausted, "{} has more than {} shards", name_, kMaxFiles);
    if (const std::string missing = MissingShard({files.begin(), files.end()}); !missing.empty())
      return Fail(Code::kCorrupt, "{} has no {}, and no {}: is it still being written?", name_, kIndex, missing);
    return files;
  }

 private:
  Result<std::vector<std::string>> FilesOfIndex() {
    const std::string what = fmt::format("{}/{}", name_, kIndex);
    auto content = MR_TRY(object::GetAll(store_, folder_ + std::string(kIndex), kMaxIndexBytes, call_));
    if (!content) return Fail(Code::kNotFound, "{} is gone; copy the whole folder of the model again", what);
    const auto parsed = ParseJsonTree(content->bytes, what);
    if (!parsed) return Fail(parsed.error().WithCode(Code::kCorrupt));
    const nlohmann::json& index = *parsed;
    auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (!index.is_object() || map == index.end() || !map->is_object())
      return Fail(Code::kCorrupt, "{} has no weight_map", what);
    std::set<std::string> files;
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string()) return Fail(Code::kCorrupt, "{}: the file of {} is not a string", what, tensor);
      std::string shard = file.get<std::string>();
      MR_TRY(CheckConfined(shard, "", what));
      if (shard.find('/') != shard.npos || !shard.ends_with(kSuffix))
        return Fail(Code::kCorrupt, "{}: \"{}\" is not a file of the folder", what, shard);
      wanted_.emplace(tensor, shard);
      files.insert(std::move(shard));
      if (files.size() > kMaxFiles)
        return Fail(Code::kResourceExhausted, "{} has more than {} shards", name_, kMaxFiles);
    }
    return std::vector(files.begin(), files.end());
  }

  Status AddFile(const std::string& file) {
    const std::string what = fmt::format("{}/{}", name_, file);
    std::string header(kFirstRead, '\0');
    auto got = MR_TRY(object::Get(store_, folder_ + file, {.range = object::ByteRange{0, kFirstRead}},
                                  AsWritableBytes(header), call_));
    if (!got) return Fail(Code::kNotFound, "{} does not exist; copy the whole folder of the model", what);
    header.resize(got->bytes);
    const std::uint64_t size = got->info.size;
    const std::uint64_t length = MR_TRY(ParseSafetensorsLength(AsBytes(header), size, what));
    if (std::uint64_t there = header.size(); 8 + length > there) {
      header.resize(8 + length);
      object::GetOptions rest{.range = object::ByteRange{there, 8 + length - there}, .if_match = got->info.etag};
      got = MR_TRY(object::Get(store_, folder_ + file, rest, AsWritableBytes(header).subspan(there), call_));
      if (!got || got->bytes != rest.range->length) return Fail(Code::kStale, "{} changed while it was read", what);
    }
    auto entries = MR_TRY(ParseSafetensorsHeader(std::string_view(header).substr(8, length), size, what));
    manifest_.files.emplace(file, FileMeta{.size = size});
    for (SafetensorsEntry& entry : entries) MR_TRY(AddTensor(std::move(entry), file, what));
    return {};
  }

  Status AddTensor(SafetensorsEntry entry, const std::string& file, const std::string& what) {
    if (!wanted_.empty()) {
      auto shard = wanted_.find(entry.name);
      if (shard == wanted_.end() || shard->second != file) return {};  // the index names another file
    }
    std::string name = std::string(kModelGroup) + entry.name;
    const std::uint64_t elements = entry.meta.elements();
    if (elements > 0) manifest_.slices.push_back({name, 0, elements, file, entry.offset});
    if (!manifest_.tensors.emplace(std::move(name), std::move(entry.meta)).second) {
      return Fail(Code::kCorrupt,
                  "{}: tensor {} is in another file of the folder too; an index file must name the file to use", what,
                  entry.name);
    }
    return {};
  }

  Status AddConfig() {
    for (const auto& [tensor, file] : wanted_) {
      if (!manifest_.tensors.contains(std::string(kModelGroup) + tensor))
        return Fail(Code::kCorrupt, "{}: {} does not have tensor {}, which the index names", name_, file, tensor);
    }
    auto content = MR_TRY(object::GetAll(store_, folder_ + std::string(kConfig), kMaxConfigBytes, call_));
    manifest_.meta = Json::object();
    if (!content) return {};
    manifest_.meta[std::string(kMetaModelConfig)] =
        MR_TRY(ParseJson(content->bytes, fmt::format("{}/{}", name_, kConfig)));
    return {};
  }

  object::ReadStore& store_;
  const std::string folder_, name_;
  const object::Call call_;
  std::map<std::string, std::string> wanted_;  ///< tensor → shard by the index; empty without an index
  Manifest manifest_;
};

}  // namespace

Result<std::unique_ptr<StoreReader>> OpenSafetensors(object::Connection& connection, std::string_view url,
                                                     object::Call call) {
  object::Location location = MR_TRY(object::Locate(connection, url));
  std::string folder = location.key;
  std::vector<std::string> files;
  if (folder.ends_with(kSuffix)) {
    std::size_t slash = folder.rfind('/');
    std::size_t start = slash == folder.npos ? 0 : slash + 1;
    files.push_back(folder.substr(start));
    folder.resize(start);
  }
  while (folder.ends_with('/')) folder.pop_back();
  std::string name = fmt::format("{}/{}", location.store->Describe(), folder);
  if (!folder.empty()) folder += '/';
  FolderReader reader({location.store, folder}, name, std::move(call));
  if (files.empty()) files = MR_TRY(reader.FindFiles());
  Manifest manifest = MR_TRY(reader.Read(files));
  return std::make_unique<StoreReader>(location.store, folder, std::move(name), std::move(manifest));
}

}  // namespace millrace::checkpoint
