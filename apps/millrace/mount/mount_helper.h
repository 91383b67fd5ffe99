// /sbin/mount.millrace: mount(8) calls it for file systems of type `millrace`, as from /etc/fstab.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::mount {

/// Returns whether the program was called as mount.millrace.
bool IsMountHelper(std::string_view program);

/// Returns arguments of `millrace` for those that mount(8) passes: `SOURCE DIRECTORY [-sfnv] [-o options]`, see
/// mount(8), "EXTERNAL HELPERS". An option `file_mode=0640` or `file-mode=0640` becomes `--file-mode=0640`; `ro`
/// becomes
/// `--read-only`. Drops options that concern mount(8) and systemd only, and options that every FUSE mount has anyway.
/// Errors: kInvalidArgument on unknown flags or without the two positional arguments.
Result<std::vector<std::string>> TranslateMountHelper(const std::vector<std::string>& arguments);

}  // namespace millrace::mount
