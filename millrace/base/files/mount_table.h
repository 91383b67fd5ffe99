// The mounts that a process sees, read from the kernel.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace {

/// One line of /proc/self/mountinfo (proc(5)), its paths unescaped.
struct MountEntry {
  std::string device;  ///< "0:45"
  std::string root;    ///< the folder of the file system that appears at `point`
  std::string point;   ///< the mount point: an absolute path without links
  std::string type;    ///< "ext4", "fuse.millrace"
  std::string source;  ///< a device, or another name that the file system chose, such as a URL
};

/// Returns the entries in the order of mounting. If several have the same point, the last one hides the others. Leaves
/// out lines that do not have the form of proc(5).
std::vector<MountEntry> ParseMountTable(std::string_view text);

/// Reads /proc/self/mountinfo. Does not touch the mounts, so a mount whose server is dead cannot block it.
/// Errors: those of ReadFile(), for example if there is no /proc.
Result<std::vector<MountEntry>> ReadMountTable();

/// Reads /proc/PID/mountinfo. Errors: those of ReadFile(), for example if the process has ended or is another user's.
Result<std::vector<MountEntry>> ReadMountTableOf(pid_t process);

}  // namespace millrace
