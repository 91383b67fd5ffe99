// The places of volumes and snapshots in buckets, and their ids, which are the URLs of these places:
//
//   s3://BUCKET/PREFIX/volumes/NAME     volume.json, data/…      a prefix of one bucket for each volume
//   s3://BUCKET/PREFIX/snapshots/NAME   snapshot.json, data/…
//   s3://PREFIX-NAME                    volume.json, data/…      a bucket for each volume
//
// Pods see data/ only. volume.json is the ownership mark: nothing is deleted below a root without one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::csi {

inline constexpr std::size_t kMaxIdBytes = 128;  ///< the limit of the CSI specification for its strings

/// The content of a root.
enum class RootKind : std::uint8_t { kVolume, kSnapshot };

/// The root of one volume or snapshot.
struct VolumeRoot {
  std::string bucket;
  std::string prefix;  ///< of its keys; empty for a bucket of its own, else ends with a slash

  bool own_bucket() const { return prefix.empty(); }
  std::string id() const;
  std::string data_prefix() const { return prefix + "data/"; }
  std::string mark_key(RootKind kind) const {
    return prefix + (kind == RootKind::kVolume ? "volume.json" : "snapshot.json");
  }
};

/// The root that an id names; nothing for an id that this driver did not make.
std::optional<VolumeRoot> ParseRootId(std::string_view id);

/// The place where a StorageClass puts volumes.
struct VolumeLocation {
  std::string bucket;         ///< empty: each volume has a bucket of its own
  std::string prefix;         ///< in that bucket; empty, or ends with a slash
  std::string bucket_prefix;  ///< the names of own buckets begin with it

  /// The prefix below which the roots of that kind are. REQUIRES: not own buckets.
  std::string FolderOf(RootKind kind) const;
  /// The root of a new volume or snapshot. A name that no key or bucket can have, or that is too long, is replaced by
  /// its hash. Errors: kInvalidArgument if the id would be too long even so.
  Result<VolumeRoot> RootOf(RootKind kind, const std::string& name) const;
};

/// The place that a volume's root is in, for snapshots of the volume.
VolumeLocation PlaceOf(const VolumeRoot& root, const std::string& bucket_prefix);

}  // namespace millrace::csi
