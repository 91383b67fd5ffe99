// Removal of checkpoints that retention does not keep, and of what failed saves left. docs/formats/checkpoint.md,
// "Removing, and fences", has the protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
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

/// Removes the checkpoints below `root` that `retention` does not keep. Also removes files of saves that never
/// committed and are older than the newest commit. Checkpoints that are pinned or held by a reader (marks.h) stay.
/// With `ours`, retention neither counts nor removes the checkpoints of other steps: they are another run's.
/// Safe beside writers, readers with a hold, and other collectors. Reads every manifest if retention.keep_best is set.
/// Blocks.
Result<CollectResult> CollectGarbage(const object::Location& root, Retention retention, bool dry_run,
                                     object::Call call = {},
                                     const std::optional<std::set<std::uint64_t>>& ours = std::nullopt);

/// Removes every checkpoint of a step after `step` that is neither pinned nor held; -1 removes all steps. For a run
/// that resumes from an earlier step. Blocks.
Result<CollectResult> RemoveAfter(const object::Location& root, std::int64_t step, bool dry_run,
                                  object::Call call = {});

}  // namespace millrace::checkpoint
