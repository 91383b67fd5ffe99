// How a program tells a Millrace mount what it will read: an ioctl on any directory of it. docs/formats/mount-hints.md
// has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/base/result.h"

namespace millrace::object {

/// The argument: in, the names of files in the order in which they will be opened; out, how many of them were taken.
struct WillOpenRequest {
  static constexpr std::size_t kSize = 16'000;  ///< below the 16 KiB that an ioctl can carry
  std::uint32_t bytes = 0;                      ///< of `names` that are used
  std::uint32_t taken = 0;
  char names[kSize - 8] = {};  ///< relative to the directory, each ended by a zero byte
};
static_assert(sizeof(WillOpenRequest) == WillOpenRequest::kSize);
extern const unsigned long kWillOpenRequest;

/// Tells the mount which files below an open directory will be opened next, in this order. Returns how many of the
/// names the mount has taken: fewer than given when its list is full. Fails with kUnsupported where the directory is
/// not in a Millrace mount.
Result<std::size_t> WillOpen(int directory, std::span<const std::string> names);

}  // namespace millrace::object
