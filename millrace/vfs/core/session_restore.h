// Restores in this process the work that another process was doing with a tree.
#pragma once

#include <set>
#include <string>

#include "millrace/object/store.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/staging/session_state.h"

namespace millrace::vfs {

struct TreeCore;

/// Gives inodes the contents that another process was changing. Contents that no open file needs are dropped, as at the
/// last close. A content of which some bytes are gone is dropped, too: IsStale finds its open files. Call before
/// AdoptStaged. Blocks on the store. Returns the keys of contents that turn out to be published: what was kept of them
/// before is outdated. REQUIRES: core.staging, and the inodes are restored.
std::set<std::string> RestoreContents(TreeCore& core, const SessionState& state, const object::Call& call);
/// Gives the inodes of open files the versions that these read. Call after AdoptStaged.
void RestoreVersions(TreeCore& core, const SessionState& state);
/// Returns true if an open file's version is not the inode's any more: it was replaced before, or its content is lost.
bool IsStale(const InodePtr& inode, const SavedFile& saved, const SessionState& state);

}  // namespace millrace::vfs
