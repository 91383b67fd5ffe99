// How a program asks a Millrace mount which keys of which store a directory stands for: an ioctl on the directory.
// docs/formats/mount-hints.md has the bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/result.h"

namespace millrace::object {

/// The answer of the ioctl.
struct MountLocation {
  static constexpr std::uint64_t kMagic = 0x00434f4c4c4c494d;  ///< "MILLLOC" and a zero byte
  static constexpr std::size_t kSize = 4096;
  std::uint64_t magic = 0;
  std::uint32_t bytes = 0;     ///< of `text` that are used
  char text[kSize - 12] = {};  ///< identity of the store, a slash, and the prefix of the directory's keys
};
static_assert(sizeof(MountLocation) == MountLocation::kSize);
extern const unsigned long kMountLocationRequest;

/// The store's identity (Store::Identity) and a key or prefix in it as one text: "http://host:9000/bucket/folder/".
std::string LocationText(const std::string& identity, const std::string& key);

/// The LocationText of a folder that a Millrace mount shows; nothing for any other folder, or where there is none.
/// Blocks on the mount's daemon.
std::optional<std::string> LocationInMount(const std::string& folder);

}  // namespace millrace::object
