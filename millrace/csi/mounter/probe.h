// Asks a mount whether it works, without waiting for one that hangs.
#pragma once

#include <sys/statvfs.h>

#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/mount/point/control.h"

namespace millrace::csi {

/// The answer of a mount's daemon. kUnavailable: the daemon is gone; kUnsupported: it is another program's mount.
using ProbeAnswer = Result<mount::DaemonAnswer>;

/// Returns nothing if there is no answer within `timeout`. A thread then stays in the kernel until the mount answers or
/// is removed. Starts no more of them while several wait already. Thread-safe.
std::optional<ProbeAnswer> ProbeMount(const std::string& path, Duration timeout);

/// Returns how full the mount is. Returns nothing if the mount does not know, or does not answer within `timeout`. A
/// mount with a quota asks its store, so a missing answer does not mean that the daemon is ill. Threads: as
/// ProbeMount().
std::optional<struct statvfs> ProbeSpace(const std::string& path, Duration timeout);

}  // namespace millrace::csi
