// Recovery of directory renames that were cut off, from their records in the bucket.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/object/store.h"
#include "millrace/vfs/rename/rename_record.h"
#include "millrace/vfs/types/options.h"

namespace millrace::vfs {

struct RecoveredRenames {
  int finished = 0;     ///< renames that had been committed
  int rolled_back = 0;  ///< renames that had not
  int left = 0;         ///< renames whose owner may be alive, or whose record is refused
  /// Messages of the records that were refused: damaged, of another format, or with a name outside the root.
  std::vector<std::string> refused;
};

/// Finishes or undoes the renames below `root` that were cut off. A rename was cut off if options.owner_alive says that
/// its owner is dead. If that cannot be known, it was cut off if its record is older than kLeaseExpired. Takes over the
/// record first. Deletes an object only if it exists under the other name, too (rename_cleanup.h). Uses only owner,
/// owner_alive and clock of `options`. Blocks. May be repeated after a failure.
Result<RecoveredRenames> RecoverRenames(object::Store& store, const RenameRoot& root, const TreeOptions& options,
                                        const object::Call& call = {});

/// The same for a whole tree. Reports refused records to options.log.
Result<RecoveredRenames> RecoverAllRenames(object::Store& store, const TreeOptions& options,
                                           const object::Call& call = {});

/// The same for one record. Adds the result to `counts`. Does nothing if the record does not exist.
Status RecoverRename(object::Store& store, const RenameRoot& root, const std::string& key, const TreeOptions& options,
                     RecoveredRenames& counts, const object::Call& call);

/// Returns the folder in which a tree keeps the record of a rename of `path`.
RenameRoot RenameRootOf(const TreeOptions& options, std::string_view path);

}  // namespace millrace::vfs
