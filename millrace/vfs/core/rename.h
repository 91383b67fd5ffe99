// Renames of files and directories. The store has no rename: a copy, then a delete.
#pragma once

#include <optional>
#include <string_view>

#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/types/changes.h"

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

/// Renames a directory. REQUIRES: `names_lock` covers both names and everything below; `to` does not exist or, with
/// `replaces`, is an empty directory. If the store does not confirm the end, core.settler gets `names_lock`.
Status RenameDirectory(TreeCore& core, const NamedPath& from, const NamedPath& to, bool replaces,
                       PathLock::ExclusiveLock& names_lock, const object::Call& call);

/// Returns the metadata of a file's copy, with the file's time of change. Returns nothing if the copy gets the file's
/// own metadata.
Result<std::optional<UserMetadata>> MetadataOfCopy(const TreeCore& core, const object::ObjectInfo& source,
                                                   WallTime modified);

}  // namespace millrace::vfs
