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
  int finished = 0;     ///< had been committed
  int rolled_back = 0;  ///< had not
  int left = 0;         ///< are somebody else's who may be at work, or are refused
  /// Why a record was not used: it is damaged, of another format, or names something outside its root.
  std::vector<std::string> refused;
};

/// Finishes or undoes what renames below `root` left behind that were cut off: those of owners known to be gone, and of
/// unknown ones any whose record nobody has rewritten for kLeaseExpired. Takes over the record first. Nothing is
/// deleted that is not there under the other name (rename_cleanup.h), whatever users have done since. Of `options`
/// count owner, owner_alive and clock. Blocks. May be repeated after a failure.
Result<RecoveredRenames> RecoverRenames(object::Store& store, const RenameRoot& root, const TreeOptions& options,
                                        const object::Call& call = {});

/// The same for a whole tree. Reports refused records to options.log.
Result<RecoveredRenames> RecoverAllRenames(object::Store& store, const TreeOptions& options,
                                           const object::Call& call = {});

/// The same for one record. Adds what became of it to `counts`; a record that is gone changes nothing.
Status RecoverRename(object::Store& store, const RenameRoot& root, const std::string& key, const TreeOptions& options,
                     RecoveredRenames& counts, const object::Call& call);

/// Where a tree keeps the record of a rename of `path`.
RenameRoot RenameRootOf(const TreeOptions& options, std::string_view path);

}  // namespace millrace::vfs
