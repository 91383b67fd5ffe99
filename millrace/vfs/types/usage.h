// The usage of a tree: the part of its limit that its files take.
#pragma once

#include <cstdint>

namespace millrace::vfs {

/// Bytes below the root of a tree. A value type.
struct Usage {
  std::uint64_t limit = 0;  ///< 0: none
  std::uint64_t used = 0;
};

}  // namespace millrace::vfs
