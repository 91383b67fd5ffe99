// mount(8)'s side: /sbin/mount.millrace, called for file systems of type `millrace` in /etc/fstab.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::mount {

/// True when the program was called by the name mount(8) calls it.
bool IsMountHelper(std::string_view program);

/// What mount(8) passes (`SOURCE DIRECTORY [-sfnv] [-o options]`, see mount(8), "EXTERNAL HELPERS") as arguments of
/// `millrace`. An option `file_mode=0640` or `file-mode=0640` becomes `--file-mode=0640`, `ro` becomes `--read-only`;
/// those that concern mount(8) and systemd alone are dropped, and so is what every FUSE file system has anyway.
Result<std::vector<std::string>> TranslateMountHelper(const std::vector<std::string>& arguments);

}  // namespace millrace::mount
