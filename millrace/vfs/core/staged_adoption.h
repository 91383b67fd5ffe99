// Files that earlier mounts staged and did not publish.
#pragma once

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

struct TreeCore;

struct AdoptedFiles {
  int files = 0;  ///< files of the tree whose content was taken over
  Status status;  ///< kCorrupt if there are records that cannot be read; they are left alone
};

/// Takes over the files that earlier mounts staged and did not publish. The tree shows them under their names, and
/// publishes them in the background. Aborts the uploads that earlier mounts began. Call once, before the tree is used.
/// Blocks on the store. REQUIRES: core.staging.
AdoptedFiles AdoptStaged(TreeCore& core, const object::Call& call);

}  // namespace millrace::vfs
