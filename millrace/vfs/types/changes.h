// Arguments of the calls that change a tree.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/base/clock.h"

namespace millrace::vfs {

/// The attributes that Tree::SetAttributes changes. A field without a value stays as it is.
struct AttributeChange {
  std::optional<std::uint64_t> size;
  std::optional<std::uint32_t> permissions, uid, gid;
  std::optional<WallTime> modified, accessed;
  /// True when attributes change that are stored with the object; the size is not among them.
  bool touches_stored() const { return permissions || uid || gid || modified || accessed; }
};

/// Permissions and owner of a new file or directory. A field without a value is as TreeOptions say.
struct Ownership {
  std::optional<std::uint32_t> permissions, uid, gid;
};

/// As the flags of setxattr(2): set in any case, only a new attribute, or only an existing one.
enum class XattrMode : std::uint8_t { kAny, kCreate, kReplace };

struct RenameFlags {
  bool no_replace = false;  ///< fail with kAlreadyExists if the new name exists
  bool repeated = false;    ///< another process may have done this rename: TreeOptions::restored
};

}  // namespace millrace::vfs
