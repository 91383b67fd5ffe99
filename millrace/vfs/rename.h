// Names that change: in a store without renames, a copy and then a delete.
#pragma once

#include "millrace/vfs/core.h"

namespace millrace::vfs {

/// As Tree::Rename. Blocks until the store has the new name and not the old one.
Status Rename(Core& core, const Place& from, const Place& to, RenameFlags flags, const object::Call& call);

}  // namespace millrace::vfs
