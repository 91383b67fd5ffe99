// Files and directories as a caller sees them: number, kind and attributes.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::vfs {

/// The number of a file or directory that has lookups (see Tree::Lookup). A tree uses no number twice. Another mount of
/// the same bucket uses other numbers.
using InodeId = std::uint64_t;
inline constexpr InodeId kRootInode = 1;  ///< as FUSE numbers the root

/// kSpecial: a pipe, a socket or a device.
enum class NodeKind : std::uint8_t { kFile, kDirectory, kSymlink, kSpecial };

/// The attributes of a file or directory, as stat(2) returns them. A value type.
struct NodeAttributes {
  InodeId inode = 0;                ///< its number in the tree
  NodeKind kind = NodeKind::kFile;  ///< what it is
  std::uint64_t size = 0;           ///< bytes
  WallTime modified;                ///< of the content
  WallTime accessed;                ///< as set; reading does not change it
  WallTime changed;                 ///< of the content or an attribute
  std::uint32_t permissions = 0;    ///< the low twelve bits of a mode
  std::uint32_t uid = 0;            ///< the user who owns it
  std::uint32_t gid = 0;            ///< the group that owns it
  std::uint32_t special_type = 0;   ///< of a kSpecial: S_IFIFO, S_IFSOCK, S_IFBLK or S_IFCHR
  std::uint64_t device = 0;         ///< of a device: its number
  bool linked = true;               ///< false once the inode has no name any more
};

/// Attributes, and how long the caller may use them without asking again. A value type.
struct CacheableAttributes {
  NodeAttributes attributes;  ///< as the store said
  Duration valid_for{};       ///< from now on
};

}  // namespace millrace::vfs
