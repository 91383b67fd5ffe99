// Probes whether a service honours the conditions of writes. Fencing of checkpoints and the mount's renames rely on
// them, but some services with an S3 API accept If-Match and If-None-Match and ignore them.
#pragma once

#include <string_view>

#include "millrace/object/store.h"

namespace millrace::object {

enum class ConditionSupport {
  kHonoured,
  kIgnored,    ///< a write whose condition does not hold takes effect
  kNeverHold,  ///< a write whose If-Match holds is refused
};

/// Tests the store by writing: puts, replaces and deletes a small object below `prefix`, named
/// ".millrace/conditions-<16 hex digits>". Tests each Identity() once in a process, and folders and memory never. Needs
/// the permissions to put and delete there; without permission to delete, the object stays.
/// Errors: kPermissionDenied and other errors of the store. The result then stays unknown and the next call tests
/// again. Blocks until the call's deadline, or for 15 s of the system's clock if it has none. Thread-safe: one caller
/// tests, the others wait.
Result<ConditionSupport> ProbeConditions(Store& store, std::string_view prefix, Call call = {});

/// Errors: kUnsupported if the store ignores conditions or never lets them hold; the message names the store and ends
/// with `advice`. Succeeds if the test itself fails, as without permission to write or while the store is unreachable:
/// the caller's next requests then fail with the reason.
Status RequireConditions(Store& store, std::string_view prefix, std::string_view advice, Call call = {});

}  // namespace millrace::object
