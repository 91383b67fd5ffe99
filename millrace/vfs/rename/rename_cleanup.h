// The deletions at the end of a rename: of the sources once it is committed, of the copies if it is undone.
#pragma once

#include "millrace/object/store.h"
#include "millrace/vfs/rename/rename_lease.h"

namespace millrace::vfs {

/// Deletes the sources of a committed rename, page by page. Checks just before that
///   - the source is still the version that was copied (ETag and time of change);
///   - the copy exists: the version that the rename made, or a version of the same size whose metadata name this rename
///     and this source.
/// Other sources stay. Errors: kBusy if the lease is lost; those of the store. May be repeated.
/// REQUIRES: lease.record()->committed.
Status DeleteSources(object::Store& store, RenameLease& lease, const object::Call& call);

/// Deletes the copies of a rename that is not committed, page by page. Checks just before that
///   - the metadata of the copy have the rename's id;
///   - its source still has that version under the old name (ETag and size), or the copy is a marker that the rename
///     made without a source.
/// Other copies stay, and so do the markers of the directories above them. Errors: as DeleteSources.
/// REQUIRES: !lease.record()->committed.
Status DeleteCopies(object::Store& store, RenameLease& lease, const object::Call& call);

/// Finishes or undoes a rename, as its record says, and removes the record. Renews the lease first: a Write that failed
/// may have reached the store, and the store must have lease.record(). Errors: as DeleteSources.
Status SettleRename(object::Store& store, RenameLease& lease, const object::Call& call);

}  // namespace millrace::vfs
