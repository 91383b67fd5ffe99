// The ioctl by which a program announces to a Millrace mount what it will read. docs/formats/mount-hints.md describes
// its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/base/result.h"

namespace millrace::object {

/// The argument of the ioctl. In: the names of files in the order in which they will be opened. Out: `taken`.
struct WillOpenRequest {
  static constexpr std::size_t kSize = 16'000;  ///< below the 16 KiB that an ioctl can carry
  std::uint32_t bytes = 0;                      ///< used bytes of `names`
  std::uint32_t taken = 0;                      ///< how many of the names the mount has accepted
  char names[kSize - 8] = {};                   ///< relative to the directory, each with a final zero byte
};
static_assert(sizeof(WillOpenRequest) == WillOpenRequest::kSize);
extern const unsigned long kWillOpenRequest;

/// Announces to the mount which files below an open directory will be opened next, in this order. Returns how many
/// names the mount has accepted; its list may be full before the last. Errors: kUnsupported if the directory is not in
/// a Millrace mount.
Result<std::size_t> WillOpen(int directory, std::span<const std::string> names);

}  // namespace millrace::object
