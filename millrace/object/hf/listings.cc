#include "millrace/object/hf/listings.h"

#include <algorithm>

#include "millrace/base/json.h"

namespace millrace::object::hf {
namespace {

constexpr std::size_t kMaxListed = 500'000, kMaxSingle = 50'000;

bool IsHex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<HubFile> ParseFile(const Json& entry) {
  HubFile file{.path = MR_TRY(JsonString(entry, "path"))};
  if (MR_TRY(JsonString(entry, "type")) == "directory") {
    file.path += '/';
    return file;
  }
  const Json* large = JsonFind(entry, "lfs");
  file.is_large = large != nullptr && large->is_object();
  file.size = MR_TRY(JsonUint(file.is_large ? *large : entry, "size"));
  file.hash = MR_TRY(JsonString(file.is_large ? *large : entry, "oid"));
  if (!IsHex(file.hash, file.is_large ? 64 : 40)) return Fail(Code::kUnavailable, "{} has no hash", file.path);
  return file;
}

}  // namespace

Result<std::vector<HubFile>> ParseHubFiles(std::string_view json) {
  auto parse = [&]() -> Result<std::vector<HubFile>> {
    const Json entries = MR_TRY(ParseJson(json, "the list of files"));
    if (!entries.is_array()) return Fail(Code::kUnavailable, "no list of files");
    std::vector<HubFile> files;
    for (const Json& entry : entries) files.push_back(MR_TRY(ParseFile(entry)));
    return files;
  };
  auto files = parse();
  if (files) return files;
  return Fail(files.error()
                  .Context("the answer is not one of the hub's; check HF_ENDPOINT and the proxy")
                  .WithCode(Code::kUnavailable));
}

std::shared_ptr<const Listing> KnownFiles::Find(const ListingScope& scope) const {
  MutexLock lock(mutex_);
  return FindLocked(scope);
}

std::shared_ptr<const Listing> KnownFiles::FindLocked(const ListingScope& scope) const {
  if (auto found = listings_.find(scope); found != listings_.end()) return found->second;
  for (ListingScope above{scope.folder, true};;) {
    if (auto found = listings_.find(above); found != listings_.end()) return found->second;
    if (above.folder.empty()) return nullptr;
    const std::size_t slash = above.folder.rfind('/');
    above.folder.resize(slash == above.folder.npos ? 0 : slash);
  }
}

std::shared_ptr<const Listing> KnownFiles::Keep(const ListingScope& scope, std::vector<HubFile> files) {
  if (scope.recursive) std::erase_if(files, [](const HubFile& file) { return file.path.ends_with('/'); });
  std::ranges::sort(files, {}, &HubFile::path);
  const auto repeated = std::ranges::unique(files, {}, &HubFile::path);
  files.erase(repeated.begin(), repeated.end());
  auto listing = std::make_shared<const Listing>(std::move(files));
  MutexLock lock(mutex_);
  if (listed_ + listing->size() > kMaxListed) {
    listings_.clear();
    listed_ = 0;
  }
  if (listings_.try_emplace(scope, listing).second) listed_ += listing->size();
  return listing;
}

std::optional<KnownFiles::Answer> KnownFiles::FindFile(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  MutexLock lock(mutex_);
  if (auto found = files_.find(path); found != files_.end()) return found->second;
  const auto listing = FindLocked({path.substr(0, slash == path.npos ? 0 : slash), false});
  if (!listing) return std::nullopt;
  auto at = std::ranges::lower_bound(*listing, path, {}, &HubFile::path);
  return at == listing->end() || at->path != path ? Answer() : Answer(*at);
}

void KnownFiles::KeepFile(const std::string& path, Answer answer) {
  MutexLock lock(mutex_);
  if (files_.size() >= kMaxSingle) files_.clear();
  files_.insert_or_assign(path, std::move(answer));
}

}  // namespace millrace::object::hf
