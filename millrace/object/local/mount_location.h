// The ioctl by which a program asks a Millrace mount which store and prefix a directory shows.
// docs/formats/mount-hints.md describes its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/result.h"

namespace millrace::object {

/// The answer of the ioctl.
struct MountLocation {
  static constexpr std::uint64_t kMagic = 0x00434f4c4c4c494d;  ///< "MILLLOC" and a zero byte
  static constexpr std::size_t kSize = 4096;                   ///< far more than an identity and a key of 1,024 bytes
  std::uint64_t magic = 0;
  std::uint32_t bytes = 0;     ///< used bytes of `text`
  char text[kSize - 12] = {};  ///< identity of the store, a slash, and the prefix of the directory's keys
};
static_assert(sizeof(MountLocation) == MountLocation::kSize);
extern const unsigned long kMountLocationRequest;

/// The identity of a store (ReadStore::Identity) and a key or prefix in one text: "http://host:9000/bucket/folder/".
std::string LocationText(const std::string& identity, const std::string& key);

/// The LocationText of a folder in a Millrace mount; no value for other folders and if there is no folder. Blocks on
/// the mount's daemon.
std::optional<std::string> LocationInMount(const std::string& folder);

}  // namespace millrace::object
