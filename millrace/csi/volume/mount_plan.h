// Translates what Kubernetes says about a volume into the mount that shows it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/csi/volume/secrets.h"

namespace millrace::csi {

/// The origin of a volume's keys.
enum class Authentication : std::uint8_t {
  kDriver,  ///< of the secret that comes with staging, else the driver's own: one mount for all pods of the node
  kSecret,  ///< of the secret that comes with publishing: a mount for each pod
  kPod      ///< of a role that the pod's service account may assume: a mount for each pod
};

/// A volume as kubelet describes it, for staging or for a pod.
struct VolumeUse {
  std::string volume_id;
  std::map<std::string, std::string> attributes;  ///< of the PersistentVolume, or of the pod's own volume
  std::vector<std::string> mount_options;
  std::string group;       ///< the pod's fsGroup, or empty
  bool read_only = false;  ///< no pod may write
  Secrets secrets;
};

/// The arguments and environment with which `millrace mount` shows a volume.
struct MountPlan {
  std::string url;
  std::vector<std::string> flags;                  ///< each is an IsVolumeFlag
  std::map<std::string, std::string> environment;  ///< may hold secrets: never log it
  bool driver_identity = false;                    ///< the process inherits the keys of the mounter
  std::string token;                               ///< of the pod's service account: a secret, too; may be empty
  bool disk_cache = false;
};

/// Names of volumeAttributes that other modules use.
inline constexpr char kBucketAttribute[] = "bucketName";
inline constexpr char kPrefixAttribute[] = "prefix";
inline constexpr char kEndpointAttribute[] = "endpointUrl";
inline constexpr char kRegionAttribute[] = "region";
inline constexpr char kProvisionedAttribute[] = "provisioned";  ///< "true": the volume owns its content
inline constexpr char kCapacityAttribute[] = "capacityBytes";
inline constexpr char kEnforceAttribute[] = "enforceCapacity";  ///< "true": the capacity is a quota

/// Returns whether the pod brings the volume along (an inline volume).
bool IsEphemeral(const std::map<std::string, std::string>& attributes);

/// "namespace/name" of the pod, if kubelet gives it; for logs.
std::string PodOf(const std::map<std::string, std::string>& attributes);

/// The attribute authenticationSource. Unless it is kDriver, staging mounts nothing.
Result<Authentication> AuthenticationOf(const std::map<std::string, std::string>& attributes);

/// Plans the mount. Volumes that the driver did not provision are strict, as Mountpoint's are: files can be deleted or
/// overwritten only if the mount options allow it.
/// Errors: kInvalidArgument for an unknown or malformed attribute, option or secret; kPermissionDenied for an inline
/// volume without keys of its own: who writes pods is not who owns the driver's keys.
Result<MountPlan> PlanMount(const VolumeUse& use);

}  // namespace millrace::csi
