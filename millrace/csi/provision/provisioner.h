// Makes and removes volumes and snapshots in buckets. Knows no gRPC. Every operation can be repeated: after a crash at
// any moment, the same call again finishes what the first one began.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/csi/provision/volume_record.h"
#include "millrace/csi/provision/volume_root.h"
#include "millrace/csi/volume/secrets.h"
#include "millrace/object/connection.h"

namespace millrace::csi {

/// The StorageClass parameter that makes the capacity of a volume a quota: "true".
inline constexpr char kEnforceCapacityParameter[] = "enforceCapacity";

/// A volume to make.
struct VolumeRequest {
  std::string name;
  std::int64_t required_bytes = 0, limit_bytes = 0;  ///< 0: no matter
  std::map<std::string, std::string> parameters;     ///< of the StorageClass
  std::string source;                                ///< the id of a volume or snapshot to copy, or empty
  RootKind source_kind = RootKind::kVolume;
  Secrets secrets;
};

/// A snapshot to make.
struct SnapshotRequest {
  std::string name, volume_id;
  Secrets secrets;
};

/// A page of a listing.
struct VolumePage {
  std::vector<VolumeRecord> marks;
  std::string next;  ///< the token of the next page; empty on the last one
};

struct ProvisionerOptions {
  std::string driver;         ///< its name; volumes of others are not touched
  std::string default_place;  ///< "s3://BUCKET/PREFIX" for classes that name no bucket, or empty. Listings are of it
  /// Opens a connection with the keys of these secrets, or with the driver's own if there are none.
  std::function<Result<std::shared_ptr<object::Connection>>(const Secrets&)> connect;
  Clock* clock = &SystemClock();
  Logger log;
};

/// Thread-safe, for one call per volume or snapshot at a time. Calls block on requests.
class Provisioner {
 public:
  /// Errors: kInvalidArgument if the default place is no URL of a bucket or prefix.
  static Result<std::unique_ptr<Provisioner>> Create(ProvisionerOptions options);

  /// Errors: kAlreadyExists if the name is taken by a volume of other size, parameters or source, or its place has
  /// content that no volume owns; kNotFound if the source does not exist; kInvalidArgument.
  Result<VolumeRecord> CreateVolume(const VolumeRequest& request, const object::Call& call);
  /// Deletes the content that the volume owns, or with `onDelete: retain` only its mark. Succeeds if there is no such
  /// volume. Errors: kPreconditionFailed if the mark names another driver or volume.
  Status DeleteVolume(const std::string& id, const Secrets& secrets, const object::Call& call);
  /// Nothing if there is no such volume.
  Result<std::optional<VolumeRecord>> FindVolume(const std::string& id, const Secrets& secrets,
                                                 const object::Call& call);
  /// Raises the capacity to at least `required_bytes`. Errors: kNotFound; kInvalidArgument beyond `limit_bytes`.
  Result<VolumeRecord> ExpandVolume(const std::string& id, std::int64_t required_bytes, std::int64_t limit_bytes,
                                    const Secrets& secrets, const object::Call& call);

  /// Copies the volume's content on the server. Files that are written meanwhile are in it or not, each as a whole.
  Result<VolumeRecord> CreateSnapshot(const SnapshotRequest& request, const object::Call& call);
  Status DeleteSnapshot(const std::string& id, const Secrets& secrets, const object::Call& call);
  Result<std::optional<VolumeRecord>> FindSnapshot(const std::string& id, const Secrets& secrets,
                                                   const object::Call& call);

  bool lists() const { return default_place_.has_value(); }
  /// Lists what is at the default place, or for snapshots at the place of `volume_id`.
  /// REQUIRES: lists(), or a volume. Errors: kInvalidArgument for a token that no page gave.
  Result<VolumePage> ListVolumes(const std::string& token, int most, const object::Call& call);
  Result<VolumePage> ListSnapshots(const std::string& volume_id, const std::string& token, int most,
                                   const Secrets& secrets, const object::Call& call);
  /// The bytes that a class with the parameter `capacity` has left; the most that fits if it has no such parameter.
  Result<std::int64_t> AvailableCapacity(const std::map<std::string, std::string>& parameters,
                                         const object::Call& call);

 private:
  struct StoredVolumeRecord {
    VolumeRecord mark;
    std::string etag;
  };
  struct OpenedRoot {
    VolumeRoot root;
    std::shared_ptr<object::Connection> connection;
    std::shared_ptr<object::Store> store;
  };
  Provisioner(ProvisionerOptions options, std::optional<VolumeLocation> place)
      : options_(std::move(options)), default_place_(std::move(place)) {}

  Result<VolumeLocation> PlaceFor(const std::map<std::string, std::string>& parameters) const;
  Result<OpenedRoot> OpenRoot(VolumeRoot root, const Secrets& secrets) const;
  Result<std::optional<StoredVolumeRecord>> ReadRecord(const OpenedRoot& at, RootKind kind,
                                                       const object::Call& call) const;
  Result<std::optional<VolumeRecord>> FindRecord(const std::string& id, RootKind kind, const Secrets& secrets,
                                                 const object::Call& call) const;
  Status CreateRecord(const OpenedRoot& at, RootKind kind, const VolumeRecord& mark, const object::Call& call) const;
  Result<VolumeRecord> CopySourceContent(const OpenedRoot& at, RootKind kind, VolumeRecord mark, const Secrets& secrets,
                                         const object::Call& call) const;
  Result<VolumeRecord> CreateRoot(const OpenedRoot& at, RootKind kind, VolumeRecord wanted, const Secrets& secrets,
                                  const std::function<Status(const VolumeRecord&)>& check,
                                  const object::Call& call) const;
  Status CheckSource(const VolumeRecord& mark, const Secrets& secrets, const object::Call& call) const;
  Status DeleteRoot(const std::string& id, RootKind kind, const Secrets& secrets, const object::Call& call) const;
  /// `source`: leave out others than copies of this volume; their marks alone say whose they are. Empty: all.
  Result<VolumePage> ListRecords(const VolumeLocation& place, RootKind kind, const std::string& source,
                                 const std::string& token, int most, const Secrets& secrets,
                                 const object::Call& call) const;

  const ProvisionerOptions options_;
  const std::optional<VolumeLocation> default_place_;
};

}  // namespace millrace::csi
