// Whether a mount works, for supervisors.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Who must answer: the mount's daemon alone, or the store behind it, too.
enum class CheckedParts { kDaemon, kDaemonAndStore };

/// Succeeds if the daemon of the mount at `path` answers within `timeout`, and the store lists the root. If the daemon
/// does not answer, a blocked thread remains: the process must then exit without joining threads. Errors:
/// kDeadlineExceeded; kNotFound if nothing is mounted there; those of QueryDaemon; kUnavailable if the root cannot be
/// listed.
Status CheckMount(const std::string& path, Duration timeout, CheckedParts parts = CheckedParts::kDaemonAndStore);

}  // namespace millrace::mount
