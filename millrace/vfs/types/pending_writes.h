// The writes that a tree has not published yet.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::vfs {

/// Files whose content is not in the store yet: for status reports. A value type.
struct PendingWrites {
  int files = 0;  ///< that are being written, or are closed
  std::uint64_t bytes = 0;
  int waiting = 0;             ///< files that are closed, and will be published in the background
  int failing = 0;             ///< of `waiting`: files whose publication failed at least once
  std::uint64_t failures = 0;  ///< attempts in the background that failed, since the tree was opened
  std::string reason;          ///< the last error of the file that failed most often; empty if no file fails
};

}  // namespace millrace::vfs
