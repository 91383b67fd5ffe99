// Names that change: in a store without renames, a copy and then a delete.
#pragma once

#include "millrace/vfs/core/tree_core.h"

namespace millrace::vfs {

struct RenameRequest {
  InodeId parent;
  std::string_view name;
  InodeId new_parent;
  std::string_view new_name;
};

/// As Tree::Rename. Blocks until the store has the new name and not the old one. A directory's rename that the store
/// does not confirm is left to core.settler: it is undone, or finished if it was committed.
Status Rename(TreeCore& core, const RenameRequest& request, RenameFlags flags, const object::Call& call);

/// Of a directory, when `closure` closes both names to others: `to` is empty or, with `replaces`, an empty directory.
/// The closure is moved away if the end stays open.
Status RenameDirectory(TreeCore& core, const NamedPath& from, const NamedPath& to, bool replaces,
                       PathGate::Closure& closure, const object::Call& call);

/// What the copy of a file carries, its time of change too; nothing: what the file itself does.
Result<std::optional<UserMetadata>> MetadataOfCopy(const TreeCore& core, const object::ObjectInfo& source,
                                                   WallTime modified);

}  // namespace millrace::vfs
