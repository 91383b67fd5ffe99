// What is mounted where, as the kernel tells this process.
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
  std::string source;  ///< a device or what the file system says it serves, such as an URL
};

/// In the order of mounting: of several entries with one point, the last is seen. Lines of another form are left out.
std::vector<MountEntry> ParseMountTable(std::string_view text);

/// The mounts of this process's namespace. Touches no mount, so a dead one cannot hang it.
Result<std::vector<MountEntry>> ReadMountTable();

}  // namespace millrace
