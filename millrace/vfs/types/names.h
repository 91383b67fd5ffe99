// The names that a file tree can show, and those that it accepts for new files.
#pragma once

#include <string_view>

#include "millrace/base/result.h"

namespace millrace::vfs {

inline constexpr std::size_t kMaxNameBytes = 255;  ///< NAME_MAX of Linux
inline constexpr std::size_t kMaxKeyBytes = 1024;  ///< S3's limit

/// The directory for the mount's own objects (records of renames). A tree does not show this name, at any depth.
inline constexpr std::string_view kHiddenName = ".millrace";

/// True when a listing may show this component of a key: not empty, not "." or "..", at most 255 bytes, without NUL,
/// and not kHiddenName.
bool IsShowable(std::string_view name);

/// Checks the name of a new file or directory. Errors: kNameTooLong; kInvalidArgument if the name is not showable, or
/// not UTF-8.
Status CheckNewName(std::string_view directory_key, std::string_view name);

/// Returns the directory part of a key: "a/b/" of "a/b/c", "" of "c".
std::string_view DirectoryOf(std::string_view key);

}  // namespace millrace::vfs
