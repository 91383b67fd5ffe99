#include "millrace/checkpoint/read/step_listing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Whether the object under a manifest's key is a fence or no longer exists.
Result<bool> HasFence(object::ReadStore& store, const std::string& key, const object::Call& call) {
  const auto content = MR_TRY(object::GetAll(store, key, Manifest::kMaxBytes, call));
  return !content || IsFence(content->bytes);
}

}  // namespace

Result<StepListing> ListSteps(const object::ReadLocation& root, const object::Call& call) {
  const CheckpointKeys keys(root.key);
  StepListing listing;
  std::vector<ListedCheckpoint>& entries = listing.committed;
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
          if (object.key == keys.OwnerKey()) listing.owner_etag = object.etag;
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
  return listing;
}

}  // namespace millrace::checkpoint
