// How a program tells a mount what it will read: an ioctl on any directory of it. docs/formats/mount-hints.md has the
// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The argument: in, the names of files in the order in which they will be opened; out, how many of them were taken.
struct WillOpenRequest {
  static constexpr std::size_t kSize = 16'000;  ///< below the 16 KiB that an ioctl can carry
  std::uint32_t bytes = 0;                      ///< of `names` that are used
  std::uint32_t taken = 0;
  char names[kSize - 8] = {};  ///< relative to the directory, each ended by a zero byte
};
static_assert(sizeof(WillOpenRequest) == WillOpenRequest::kSize);
extern const unsigned long kWillOpenRequest;

/// The names in an argument from outside: relative, not empty, without "." and ".." components. kInvalidArgument for
/// what breaks the format; names that no file can have are refused, too.
Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument);

}  // namespace millrace::mount
