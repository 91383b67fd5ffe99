#include "millrace/checkpoint/read/catalog.h"

#include <set>
#include <utility>

#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/read/step_listing.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

namespace {

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

Result<std::vector<ListedCheckpoint>> ListCheckpoints(const object::ReadLocation& root, object::Call call,
                                                      std::vector<ListedCheckpoint>* superseded) {
  StepListing listing = MR_TRY(ListSteps(root, call));
  if (!listing.owner_etag || listing.committed.empty()) return std::move(listing.committed);
  std::vector<std::uint64_t> steps;
  for (const ListedCheckpoint& entry : listing.committed) steps.push_back(entry.step);
  const std::set<std::uint64_t> ignored = MR_TRY(FindSuperseded(*root.store, CheckpointKeys(root.key), steps, call));
  std::vector<ListedCheckpoint> entries;
  for (ListedCheckpoint& entry : listing.committed) {
    if (!ignored.contains(entry.step)) {
      entries.push_back(std::move(entry));
    } else if (superseded != nullptr) {
      superseded->push_back(std::move(entry));
    }
  }
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
