// Opens a folder on a machine that has other users. The path is walked component by component. Each component is opened
// from the handle of the one before and checked on its own handle, so that nobody can swap it after its check. The
// checks are those of OpenSSH's StrictModes, extended to folders such as /tmp.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace {

/// The role of a folder, as error messages name it.
struct FolderRole {
  std::string_view what;  ///< "the staging folder"
  std::string_view cure;  ///< "choose another one with --staging-dir"; empty: none
};

/// Returns whether a user other than this process's user and root may write to an inode. Its mode then lets everybody
/// write, or a group that is not this user's alone (with an access control list, any group). `fd` is a handle of the
/// inode (O_PATH is enough).
bool OthersMayWrite(int fd, const struct stat& info);

enum class MissingFolder { kMake, kFail };

/// Returns a handle (O_RDONLY | O_DIRECTORY) of the folder at `path`. With kMake, makes it and missing parents, mode
/// 0700. Does not change the mode of a folder that exists. Thread-safe. Checks these conditions on handles:
///   - the folder belongs to the effective user, nobody else may write to it, and its name is no symbolic link;
///   - nobody else may write to a parent, unless it is sticky as /tmp is;
///   - every symbolic link on the path belongs to root or the effective user, and so do all parents before it.
/// A parent may belong to another user: that user can take the folder away, but cannot choose its content.
/// Errors: kPermissionDenied if a check fails; kNotFound if the folder is missing and `missing` is kFail; kNotDirectory
/// if a file is in the way. Messages name the folder, the reason and the cure.
Result<UniqueFd> OpenTrustedFolder(const std::filesystem::path& path, const FolderRole& role, MissingFolder missing);

}  // namespace millrace
