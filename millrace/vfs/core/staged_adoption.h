// Files that earlier mounts staged and did not publish.
#pragma once

#include <set>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/vfs/metadata/metadata.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

struct TreeCore;

struct AdoptedFiles {
  int files = 0;  ///< files of the tree whose content was taken over
  Status status;  ///< kCorrupt if there are records that cannot be read; they are left alone
};

/// Takes over the files that earlier mounts staged and did not publish. The tree shows them under their names, and
/// publishes them in the background. Aborts the uploads that earlier mounts began. Call once, before the tree is used.
/// Blocks on the store. `published`: what RestoreContents returned; files kept for these keys are removed.
/// REQUIRES: core.staging.
AdoptedFiles AdoptStaged(TreeCore& core, const std::set<std::string>& published, const object::Call& call);

/// Returns true if the store has the object that the record's publication makes: bytes and metadata.
bool WasPublished(TreeCore& core, const StagedRecord& record, const object::Call& call);
/// Returns what to report of a file with the staged content. Asks the store for attributes that the record lacks.
Metadata ReportedOf(TreeCore& core, const StagedRecord& record, const object::Call& call);

}  // namespace millrace::vfs
