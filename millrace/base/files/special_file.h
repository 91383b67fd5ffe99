// Devices, FIFOs and sockets: names that are neither files nor folders. Code that makes a file under a temporary name
// and renames it asks here first, because a rename replaces a device as readily as a file. WriteFileAtomic() and
// ReplaceFile() do so, too.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace {

/// Returns what a file of this mode is if it is neither a regular file, nor a folder, nor a symbolic link: "a FIFO".
/// Empty for those.
std::string_view SpecialTypeOf(mode_t mode);

/// Returns what `name` in the open folder `folder` (or AT_FDCWD) leads to, as SpecialTypeOf(). Follows symbolic links.
/// A link to an open descriptor of this process, such as /dev/stdout, is "an open descriptor". Empty if nothing is
/// there.
std::string_view SpecialTypeAt(int folder, const std::string& name);

/// Returns the state of the regular file that a rename to `name` would replace; nothing if there is no such file. A
/// symbolic link is not followed: the rename replaces the link.
/// Errors: kInvalidArgument if SpecialTypeAt() finds something there. `what` names it in the message.
Result<std::optional<struct stat>> FindReplaced(int folder, const std::string& name, std::string_view what);

/// Gives a new file the permissions, and if possible the group, of the file that it replaces; and the permissions
/// `also`. Without that group, the file's own group gets no permissions. `what` names the file in messages.
Status KeepAccess(int fd, const struct stat& replaced, mode_t also, std::string_view what);

}  // namespace millrace
