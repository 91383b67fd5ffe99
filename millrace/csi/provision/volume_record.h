// The ownership mark of a volume or snapshot: an object outside of what pods see, without which nothing is deleted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/csi/provision/volume_root.h"

namespace millrace::csi {

/// The progress of a volume or snapshot.
enum class VolumeState : std::uint8_t {
  kCopying,  ///< its content is being copied from its source
  kReady,
  kDeleting
};

/// See docs/formats/csi-volume.md.
struct VolumeRecord {
  std::string id;      ///< of the volume or snapshot
  std::string driver;  ///< the name of the driver that made it
  std::string name;    ///< as Kubernetes named it
  VolumeState state = VolumeState::kReady;
  std::int64_t capacity_bytes = 0;  ///< of a volume: 0 if it has no limit; of a snapshot: its size
  std::string source;               ///< the id that its content was copied from, or empty
  RootKind source_kind = RootKind::kVolume;
  std::map<std::string, std::string> parameters;  ///< of a volume: those it was made with
  std::int64_t created_unix_seconds = 0;

  std::string ToJson() const;
  /// Errors: kCorrupt, naming `what`.
  static Result<VolumeRecord> Parse(std::string_view text, const std::string& what);
};

}  // namespace millrace::csi
