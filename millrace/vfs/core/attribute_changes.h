// Changes of the stored attributes of files and directories.
#pragma once

#include <cstdint>

#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/types/changes.h"

namespace millrace::vfs {

struct TreeCore;

/// Returns the attributes to store for something new in `parent`: those that differ from what the options say. `type`:
/// S_IFREG, S_IFDIR, … A directory with the set-group-ID bit gives its group to what is made in it.
StoredAttributes NewAttributes(const TreeCore& core, std::uint32_t type, const Ownership& ownership, Inode& parent)
    MR_EXCLUDES(parent.mutex);

/// Changes the stored attributes of a file or directory. If the file has unpublished content, its next version gets
/// them. Blocks on the store. Errors: kReadOnly; what `change` returns; what the store says.
Status ChangeAttributes(TreeCore& core, const InodePtr& inode, const AttributeStore::Change& change,
                        const object::Call& call) MR_EXCLUDES(inode->mutex);

}  // namespace millrace::vfs
