// The folder that a mount covers: finding, preparing and freeing it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/files/mount_table.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns the topmost mount at exactly this path, or nothing if it is no mount point. Reads the mount table only, so
/// it does not block on a mount that hangs.
Result<std::optional<MountEntry>> FindMount(const std::string& absolute_path);

/// A place where a file system is mounted.
struct MountView {
  pid_t process = 0;    ///< one that sees it; 0: this process does
  std::string program;  ///< that process's name
  std::string point;    ///< the path, in that process's mount namespace
  bool operator==(const MountView&) const = default;
};

/// Returns where the file system with this MountEntry::device is mounted: every place in this mount namespace, and one
/// in each other namespace. Leaves out namespaces of which this process may see no member.
std::vector<MountView> FindViews(const std::string& device);

/// Returns the absolute path without symbolic links, as the mount table has it. Works on a mount whose daemon has died.
/// Errors: kNotFound if there is no such folder.
Result<std::string> ResolveMountPoint(const std::string& path);

/// Returns the resolved path of a folder that can be mounted on. Detaches a mount that a killed daemon left there.
/// Errors, each with what to do: kUnsupported without /dev/fuse; kBusy if a FUSE mount is there; kNotFound;
/// kNotDirectory; kNotEmpty.
Result<std::string> PrepareMountPoint(const std::string& path);

/// Unmounts: by system call as root, else by fusermount3. `lazy`: even while the mount is in use.
/// Errors: kBusy while it is in use.
Status Detach(const std::string& absolute_path, bool lazy);

/// Sets the kernel's readahead on the mount, in bytes. Needs root. A failure only makes reads slower.
Status SetReadAhead(const std::string& absolute_path, std::uint64_t bytes);

/// Returns whether a system call's errno says that the daemon of a FUSE mount is dead.
bool IsDisconnectedError(int error);

}  // namespace millrace::mount
