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

/// Takes over what earlier mounts staged and did not publish. The tree shows it as the files that it belongs to, and
/// publishes it in the background. Aborts the uploads that earlier mounts began. Call once, before anybody uses the
/// tree. Blocks on the store. REQUIRES: core.staging.
AdoptedFiles AdoptStaged(TreeCore& core, const object::Call& call);

}  // namespace millrace::vfs
