// The folder that a mount covers: finding, preparing and freeing it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/files/mount_table.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns the topmost mount at exactly this path, or nothing if it is no mount point. Reads the mount table only, so
/// it does not block on a mount that hangs.
Result<std::optional<MountEntry>> FindMount(const std::string& absolute_path);

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
