// What a file is besides its bytes: how it is kept in an object's user metadata.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::vfs {

/// Mode, owner, times and extended attributes of one file, as far as they are stored. A field without a value is told
/// by the mount (modes and owners) or by the object itself (times). A value type.
///
/// In metadata they stand under the names that s3fs and rclone use: `mode` (type and permissions), `uid`, `gid`,
/// `mtime`, `atime`, `ctime`, `xattr`. They are written in s3fs's notation (decimal numbers; seconds with nine
/// decimals, which rclone reads too; xattr as percent-encoded JSON of base64 values) and read in either (octal modes,
/// RFC 3339 times). What cannot be read counts as not stored.
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

/// Replaces what `metadata` has of attributes and keeps the rest. Fails with kNoSpace, changing nothing, when an object
/// cannot hold so much.
Status ToMetadata(const StoredAttributes& attributes, UserMetadata& metadata);

/// The name under which the copies that a rename makes keep its id. ToMetadata and ForgetTimes drop it: what has
/// changed since is no mere copy.
inline constexpr const char* kRenameKey = "millrace-rename";
/// The ETag of what it is a copy of: a copy whose answer was lost is known by it.
inline constexpr const char* kRenameSourceKey = "millrace-rename-of";

/// New content has new times: forgets those of the old one.
void ForgetTimes(UserMetadata& metadata);

}  // namespace millrace::vfs
