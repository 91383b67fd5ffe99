// The attributes of a file, and how an object's user metadata holds them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::vfs {

/// The stored mode, owner, times and extended attributes of one file. A field without a value has a default: modes and
/// owners come from the mount's options, times from the object itself. A value type.
///
/// User metadata have them under the names of s3fs and rclone: `mode` (type and permissions), `uid`, `gid`, `mtime`,
/// `atime`, `ctime`, `xattr`. They are written in s3fs's notation: decimal numbers; seconds with nine decimals, which
/// rclone reads too; xattr as percent-encoded JSON of base64 values. They are also read in rclone's notation: octal
/// modes, RFC 3339 times. A value that cannot be read counts as not stored.
struct StoredAttributes {
  std::optional<std::uint32_t> mode;  ///< as in struct stat: the file's type and its permissions
  std::optional<std::uint32_t> uid, gid;
  std::optional<std::uint64_t> device;  ///< of a device file
  std::optional<WallTime> modified, accessed, changed;
  std::map<std::string, std::string> xattrs;  ///< name (with "user.") to any bytes

  bool operator==(const StoredAttributes&) const = default;
  bool empty() const { return *this == StoredAttributes(); }
  bool is_symlink() const;
  bool is_special() const;  ///< a pipe, a socket or a device
};

using UserMetadata = std::map<std::string, std::string>;  ///< see object::ObjectInfo::metadata

/// S3's bound on the user metadata of an object: names and values together.
inline constexpr std::size_t kMaxMetadataBytes = 2048;

StoredAttributes FromMetadata(const UserMetadata& metadata);

/// Replaces the attributes in `metadata` and keeps the rest. Errors: kNoSpace if the attributes do not fit into an
/// object; then nothing has changed.
Status ToMetadata(const StoredAttributes& attributes, UserMetadata& metadata);

/// The metadata key with the rename's id on the copies that a rename makes. ToMetadata and ForgetTimes drop it: a file
/// that has changed is not that copy any more.
inline constexpr const char* kRenameKey = "millrace-rename";
/// The metadata key with the ETag of the source. It identifies a copy whose answer was lost.
inline constexpr const char* kRenameSourceKey = "millrace-rename-of";

/// Removes the times of the old content: new content has new times.
void ForgetTimes(UserMetadata& metadata);

}  // namespace millrace::vfs
