// What a rename deletes at its end: the sources once it is committed, the copies if it is undone.
#pragma once

#include "millrace/object/store.h"
#include "millrace/vfs/rename/rename_lease.h"

namespace millrace::vfs {

/// Deletes the sources of a committed rename, page by page. A source is deleted only if, moments before:
///   - it is the version that was copied (ETag and time of change);
///   - its copy is there: the version that the rename made, or one that carries the rename's id and names this source,
///     of the same size.
/// Other sources stay. Errors: kBusy if the lease is lost; else what the store says. May be repeated.
/// REQUIRES: lease.record()->committed.
Status DeleteSources(object::Store& store, RenameLease& lease, const object::Call& call);

/// Deletes the copies of a rename that is not committed, page by page. A copy is deleted only if, moments before:
///   - it carries the rename's id;
///   - the version that it is a copy of is there under the old name (ETag and size), or the rename made it as a
///     directory's marker without a source.
/// The marker of a directory in which something stays, stays too. Errors: as DeleteSources.
/// REQUIRES: !lease.record()->committed.
Status DeleteCopies(object::Store& store, RenameLease& lease, const object::Call& call);

/// Ends a rename in the way that its record says: DeleteSources or DeleteCopies, then the record goes. Renews the lease
/// first, so that a rewrite whose outcome was open is over.
Status SettleRename(object::Store& store, RenameLease& lease, const object::Call& call);

}  // namespace millrace::vfs
