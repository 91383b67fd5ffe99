// Names that change: in a store without renames, a copy and then a delete.
#pragma once

#include "millrace/vfs/core.h"

namespace millrace::vfs {

struct RenameRequest {
  InodeId parent;
  std::string_view name;
  InodeId new_parent;
  std::string_view new_name;
};

/// As Tree::Rename. Blocks until the store has the new name and not the old one.
Status Rename(Core& core, const RenameRequest& request, RenameFlags flags, const object::Call& call);

/// Of a directory, when both names are closed to others: `to` is empty or, with `replaces`, an empty directory.
Status RenameDirectory(Core& core, const Place& from, const Place& to, bool replaces, const object::Call& call);

/// What the copy of a file carries, its time of change too; nothing: what the file itself does.
Result<std::optional<UserMetadata>> MetadataOfCopy(const Core& core, const object::ObjectInfo& source,
                                                   WallTime modified);

}  // namespace millrace::vfs
