// Checks whether a mount works, for supervisors.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The parts that must answer: the mount's daemon alone, or the store behind it, too.
enum class CheckedParts { kDaemon, kDaemonAndStore };

/// Succeeds if the daemon of the mount at `path` answers within `timeout`, and the store lists the root. A child
/// process asks. If the daemon does not answer, the child is killed, but not awaited: it may be in the kernel, where a
/// signal reaches it only when the daemon goes on or dies. Errors: kDeadlineExceeded; kNotFound if nothing is mounted
/// there; those of QueryDaemon; kUnavailable if the root cannot be listed.
Status CheckMount(const std::string& path, Duration timeout, CheckedParts parts = CheckedParts::kDaemonAndStore);

}  // namespace millrace::mount
