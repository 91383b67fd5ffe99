#include "millrace/checkpoint/read/catalog.h"

#include <algorithm>
#include <set>

#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

namespace {

/// Whether the object under a manifest's key is a fence or no longer exists.
Result<bool> HasFence(object::ReadStore& store, const std::string& key, const object::Call& call) {
  const auto content = MR_TRY(object::GetAll(store, key, Manifest::kMaxBytes, call));
  return !content || IsFence(content->bytes);
}

/// Returns the first folder directly below `root` that has checkpoints; "" if there is none.
Result<std::string> FolderWithCheckpoints(const object::ReadLocation& root, const object::Call& call) {
  constexpr int kMaxFolders = 20;  // a run has few
  const std::string prefix = root.key.empty() || root.key.ends_with('/') ? root.key : root.key + "/";
  const auto page =
      MR_TRY(object::List(*root.store, {.prefix = prefix, .delimiter = "/", .max_keys = kMaxFolders}, call));
  for (const std::string& folder : page.common_prefixes) {
    const std::string key = folder.substr(0, folder.size() - 1);
    if (!MR_TRY(ListCheckpoints({root.store, key}, call)).empty()) return key.substr(prefix.size());
  }
  return "";
}

}  // namespace

Result<std::vector<ListedCheckpoint>> ListCheckpoints(const object::ReadLocation& root, object::Call call) {
  const CheckpointKeys keys(root.key);
  std::vector<ListedCheckpoint> entries;
  std::vector<ListedCheckpoint> like_fences;  // objects of a fence's size
  std::set<std::uint64_t> pinned;
  std::set<std::string, std::less<>> folders;
  MR_TRY(object::ListAll(
      *root.store, {.prefix = keys.StepsPrefix(), .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) {
          auto step = keys.StepOfManifest(object.key);
          if (step)
            (object.size == kFenceBytes ? like_fences : entries).push_back({*step, object.key, object.modified});
          if (auto mark = keys.ParseMark(object.key); mark && mark->kind == CheckpointKeys::MarkKind::kPin)
            pinned.insert(mark->step);
        }
        folders.insert(page.common_prefixes.begin(), page.common_prefixes.end());
        return true;
      },
      call));
  // A removed step has a fence and no files. If a step has files, an object of a fence's size may also be a damaged
  // manifest that was cut to that size. Only its content tells.
  for (ListedCheckpoint& entry : like_fences) {
    if (!folders.contains(keys.StepFolder(entry.step))) continue;
    if (!MR_TRY(HasFence(*root.store, entry.key, call))) entries.push_back(std::move(entry));
  }
  for (ListedCheckpoint& entry : entries) entry.pinned = pinned.contains(entry.step);
  // The listing is sorted by key. For steps of more than eight digits that is not the order of the steps.
  std::sort(entries.begin(), entries.end(),
            [](const ListedCheckpoint& a, const ListedCheckpoint& b) { return a.step < b.step; });
  return entries;
}

Error NoCheckpoints(const object::ReadLocation& root, std::string_view url, const object::Call& call) {
  while (url.ends_with('/')) url.remove_suffix(1);
  const std::size_t name = url.find_last_of('/') + 1;
  if (const auto step = CheckpointKeys("").StepOfManifest(fmt::format("{}.json", url.substr(name))); step && name > 0) {
    return Error(Code::kNotFound, fmt::format("{} is the folder of one checkpoint; use {} and its step, {}", url,
                                              url.substr(0, name - 1), *step));
  }
  const auto folder = FolderWithCheckpoints(root, call);
  if (!folder || folder->empty()) {
    return Error(
        Code::kNotFound,
        fmt::format("{} has no committed checkpoint; name the checkpoint.url of a run, or wait for its first save",
                    url));
  }
  return Error(Code::kNotFound, fmt::format("{} has no committed checkpoint; to use those of its folder {}, give {}/{}",
                                            url, *folder, url, *folder));
}

}  // namespace millrace::checkpoint
