// The folder a tree is mounted on: what is there, and how to leave it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/files/mount_table.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The topmost mount at exactly this path; nothing when it is no mount point. Never touches the mount itself.
Result<std::optional<MountEntry>> FindMount(const std::string& absolute_path);

/// The path without symbolic links, fit for mountinfo; works on a mount whose server has died.
Result<std::string> ResolveMountPoint(const std::string& path);

/// Refuses what cannot be mounted on, saying what to do: no such folder, no folder, not empty, mounted already, no
/// /dev/fuse. A mount left behind by a killed daemon is removed.
Status PrepareMountPoint(const std::string& absolute_path);

/// Detaches the mount: by system call as root, else by fusermount3. `lazy`: even while it is in use.
Status Unmount(const std::string& absolute_path, bool lazy);

/// Asks the kernel to read this far ahead on the mount. Needs root; a failure costs speed only.
Status SetReadAhead(const std::string& absolute_path, std::uint64_t bytes);

/// What a mount's daemon tells about itself through an ioctl on its root.
struct DaemonStatus {
  std::uint64_t magic = 0;
  std::int32_t pid = 0;
  std::int32_t files_being_written = 0;
  std::uint64_t bytes_being_written = 0;
};
inline constexpr std::uint64_t kDaemonStatusMagic = 0x4d494c4c52414345;  // "MILLRACE"
extern const unsigned long kDaemonStatusRequest;
/// kUnsupported when it is no millrace mount, kUnavailable when its daemon is gone.
Result<DaemonStatus> QueryDaemon(const std::string& absolute_path);
/// Likewise: its figures (see MountStats::Snapshot).
extern const unsigned long kDaemonStatsRequest;
Result<Json> QueryStats(const std::string& absolute_path);
/// Whether the mount answers: its daemon within `timeout`, and the store behind it to a listing of the root. Fails with
/// what is wrong. Leaves a thread behind when the daemon does not answer, so call it last.
Status CheckMount(const std::string& path, Duration timeout);

}  // namespace millrace::mount
