// The mounts that this process sees, read from the kernel.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace {

/// One line of /proc/self/mountinfo (proc(5)), its paths unescaped.
struct MountEntry {
  std::string device;  ///< "0:45"
  std::string root;    ///< the folder of the file system that is seen at `point`
  std::string point;   ///< where it is mounted: an absolute path without links
  std::string type;    ///< "ext4", "fuse.millrace"
  std::string source;  ///< the device, or what else the file system names, such as a URL
};

/// The entries in the order of mounting: where several have the same point, the last one hides the others. A line that
/// does not have the form of proc(5) is left out.
std::vector<MountEntry> ParseMountTable(std::string_view text);

/// Reads /proc/self/mountinfo. Does not touch the mounts, so one whose server is dead cannot block it.
/// Fails as ReadFile does where there is no /proc.
Result<std::vector<MountEntry>> ReadMountTable();

}  // namespace millrace
