// Plans `sync`: merges two sorted listings into copies and deletions.
#pragma once

#include <functional>

#include "millrace/transfer/plan/glob.h"
#include "millrace/transfer/plan/items.h"

namespace millrace::transfer {

struct SyncRules {
  bool size_only = false;         ///< equal sizes are equal files
  bool exact_timestamps = false;  ///< equal sizes are equal only if both were modified in the same second
  bool delete_extra = false;      ///< names that only the destination has are deleted
  /// If false and `delete_extra` is set, PlanSync() fails before its first deletion if the source has no name that
  /// passes the filter.
  bool allow_empty_source = false;
  NameFilter filter;  ///< names that do not pass are ignored on both sides
};

/// One step of a plan.
struct SyncAction {
  enum class Operation { kCopy, kDelete, kSame } operation;
  Item item;  ///< of the source, or for kDelete of the destination
};

/// Returns whether a file that both sides have is copied. By default it is if the sizes differ or the source is newer
/// by whole seconds.
bool NeedsCopy(const object::ObjectInfo& source, const object::ObjectInfo& destination, const SyncRules& rules);

/// Merges the two streams and calls `act` with each action, in the order of the names, while it reads. So memory does
/// not grow with the number of items. Blocks until both streams end or `act` fails. Errors: those of the streams and of
/// `act`; kUnsupported if a stream is not sorted; kNotFound if the source is empty (see SyncRules::allow_empty_source).
/// After an error, the actions before may be wrong: so deletions must wait for success.
Status PlanSync(ItemStream& source, ItemStream& destination, const SyncRules& rules,
                const std::function<Status(SyncAction)>& act);

}  // namespace millrace::transfer
