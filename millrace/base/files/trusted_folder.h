// Opens a folder on a machine that has other users. The way to the folder is walked component by component, each one
// opened from the handle of the one before and checked on its own handle, so that nobody can swap a component after its
// check. The checks are those of OpenSSH's StrictModes, extended to folders such as /tmp.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace {

/// How error messages name a folder.
struct FolderRole {
  std::string_view what;  ///< "the staging folder"
  std::string_view cure;  ///< "choose another one with --staging-dir"; empty: none
};

/// Whether a user other than this process's and root may write to an inode: its mode lets everybody, or a group that is
/// more than this user's own. `fd` is a handle of the inode (O_PATH is enough).
bool OthersMayWrite(int fd, const struct stat& info);

enum class MissingFolder { kMake, kFail };

/// Returns a handle (O_RDONLY | O_DIRECTORY) of the folder at `path`. Makes it and missing parents, mode 0700, if
/// asked. The mode of a folder that exists is left alone. Thread-safe. What is checked, on handles:
///   - the folder belongs to the effective user, nobody else may write to it, and its name is no symbolic link;
///   - nobody else may write to a folder on the way, unless it is sticky as /tmp is;
///   - a symbolic link on the way is followed only if root or the effective user made it, in a folder of theirs.
/// A folder on the way may belong to another user: that user can take the folder away, but not choose its content.
/// Errors, all of which name the folder, the reason and the cure: kPermissionDenied if a check fails; kNotFound if it
/// is missing and `missing` is kFail; kNotDirectory if a file is in the way.
Result<UniqueFd> OpenTrustedFolder(const std::filesystem::path& path, const FolderRole& role, MissingFolder missing);

}  // namespace millrace
