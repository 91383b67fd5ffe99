// What `sync` has to do, from two listings in order.
#pragma once

#include <functional>

#include "millrace/transfer/plan/glob.h"
#include "millrace/transfer/plan/items.h"

namespace millrace::transfer {

struct SyncRules {
  bool size_only = false;         ///< equal sizes are equal files
  bool exact_timestamps = false;  ///< equal sizes are equal only if both were modified in the same second
  bool delete_extra = false;      ///< what only the destination has is deleted
  /// Without it, a plan to delete fails before its first deletion if the source has no name that passes the filter.
  bool allow_empty_source = false;
  NameFilter filter;  ///< names that do not pass are left alone on both sides
};

struct SyncAction {
  enum class Kind { kCopy, kDelete, kSame } kind;
  Item item;  ///< of the source, or for kDelete of the destination
};

/// Without options a file is copied when the destination lacks it, has another size, or is older (by whole seconds).
bool NeedsCopy(const object::ObjectInfo& source, const object::ObjectInfo& destination, const SyncRules& rules);

/// Merges the two streams and hands out what is to be done, in the order of the names, while it reads: memory does not
/// grow with the number of items. Ends early when `act` fails. Fails with kInternal on a stream that is out of order,
/// and with kNotFound on an empty source (see SyncRules).
Status PlanSync(ItemStream& source, ItemStream& destination, const SyncRules& rules,
                const std::function<Status(SyncAction)>& act);

}  // namespace millrace::transfer
