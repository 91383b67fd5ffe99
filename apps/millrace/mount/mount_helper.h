// /sbin/mount.millrace: mount(8) calls it for file systems of type `millrace`, as from /etc/fstab.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns whether the program was called as mount.millrace.
bool IsMountHelper(std::string_view program);

/// Translates the arguments of mount(8), `SOURCE DIRECTORY [-sfnv] [-o options]` (mount(8), "EXTERNAL HELPERS"), to
/// those of `millrace`. An option `file_mode=0640` or `file-mode=0640` becomes `--file-mode=0640`; `ro` becomes
/// `--read-only`. Drops options for mount(8) and systemd, and options that every FUSE mount has. Errors:
/// kInvalidArgument on unknown flags or without the two positional arguments.
Result<std::vector<std::string>> TranslateMountHelper(const std::vector<std::string>& arguments);

}  // namespace millrace::mount
