// Whether a service honours the conditions of writes. Fencing of checkpoints and the mount's renames stand on them, and
// some services that speak S3 take If-Match and If-None-Match and ignore them.
#pragma once

#include <string_view>

#include "millrace/object/store.h"

namespace millrace::object {

enum class ConditionSupport { kHonoured, kIgnored };

/// Finds out by writing: puts, replaces and removes one object of some bytes below `prefix`, named
/// ".millrace/conditions-<16 hex digits>". Asked once for each Identity() in a process; folders and memory need not be
/// asked. Needs the rights to put and delete there; where deleting is not allowed, the object stays.
/// Errors: kPermissionDenied and whatever the store answers else; nothing is known then, and the next call asks again.
/// Blocks: until the call's deadline, or for 15 s of the system's clock if it has none. Thread-safe: one caller asks,
/// the others wait.
Result<ConditionSupport> ProbeConditions(Store& store, std::string_view prefix, Call call = {});

/// kUnsupported where the store is known to ignore conditions; the message names the store and ends with `advice`.
/// Where it cannot be found out, as without rights to write or while the store is away, what follows will say so
/// itself.
Status RequireConditions(Store& store, std::string_view prefix, std::string_view advice, Call call = {});

}  // namespace millrace::object
