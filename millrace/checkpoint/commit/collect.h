// Removal of checkpoints that retention does not keep, and of what failed saves left. docs/formats/checkpoint.md,
// "Removing, and fences", has the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// The things that a collector removed. With `dry_run`: what it would remove.
struct CollectResult {
  std::vector<std::uint64_t> removed_steps;
  std::vector<std::uint64_t> contested_steps;  ///< not removed: another program changed the step first
  std::uint64_t objects = 0, bytes = 0;        ///< files of checkpoints and of failed saves
  std::uint64_t uploads = 0;                   ///< unfinished multipart uploads
};

/// A run's knowledge of the checkpoints where it saves.
struct RunsView {
  std::set<std::uint64_t> ours;        ///< steps that this run or its past saved; retention counts no others
  std::set<std::uint64_t> superseded;  ///< steps whose manifests do not count; only with confirms_owner
  /// Checks that the run is still the owner of the place. Gets the owner object's ETag of a listing that has just
  /// ended; nothing if the listing has no owner object. After an error nothing more is removed. Empty: the run is no
  /// owner.
  std::function<Status(const std::optional<std::string>& listed_etag)> confirms_owner;
};

/// Removes the checkpoints below `root` that `retention` does not keep. Also removes files of saves that never
/// committed and are older than the newest commit. Checkpoints that are pinned or held by a reader (marks.h) stay.
/// Checkpoints of superseded attempts do not count, and are removed. With `view`, retention neither counts nor removes
/// the checkpoints of steps that are not the run's. Without it, the owner object says which are superseded.
/// Safe beside writers, readers with a hold, and other collectors. Reads every manifest if retention.keep_best is set.
/// Blocks.
Result<CollectResult> CollectGarbage(const object::Location& root, Retention retention, bool dry_run,
                                     object::Call call = {}, const RunsView* view = nullptr);

/// Removes every checkpoint of a step after `step` that is neither pinned nor held; -1 removes all steps. For a run
/// that resumes from an earlier step. Blocks.
Result<CollectResult> RemoveAfter(const object::Location& root, std::int64_t step, bool dry_run,
                                  object::Call call = {});

}  // namespace millrace::checkpoint
