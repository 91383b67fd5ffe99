// The process that owns the mounts of a node, as the Node service sees it. The two are apart so that the driver can be
// restarted and upgraded while pods use their volumes, and so that only one of them is privileged.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/csi/volume/mount_plan.h"

namespace millrace::csi {

/// A mount that is wanted.
struct MountRequest {
  std::string volume;  ///< its id, for messages
  std::string target;  ///< an absolute path below kubelet's folder
  MountPlan plan;
  bool exclusive = false;  ///< fail if the volume is mounted for another pod of the node
};

/// A mount that is to be shown at another place, too.
struct BindRequest {
  std::string source, target;  ///< absolute paths below kubelet's folder
  bool read_only = false;
  bool exclusive = false;  ///< fail if the mount is shown at another place already
};

enum class MountHealth : std::uint8_t {
  kAnswers,
  kSilent,  ///< it has not answered in time; it may yet
  kGone     ///< its daemon has ended
};

/// The state of a mount point: the volume that it shows, and whether it works.
struct MountState {
  MountHealth health = MountHealth::kAnswers;
  std::string problem;           ///< why programs fail there, or will; empty if all is well
  std::string fingerprint;       ///< PlanFingerprint of its plan; empty if a daemon serves it from elsewhere (Bind)
  bool driver_identity = false;  ///< of its plan
  /// 0 if it is not known how full the volume is.
  std::int64_t total_bytes = 0, available_bytes = 0, used_bytes = 0;
  std::int64_t total_inodes = 0, available_inodes = 0, used_inodes = 0;
};

/// Makes and removes mounts. Calls for one target at a time. Thread-safe. Every call blocks.
class Mounter {
 public:
  virtual ~Mounter() = default;
  /// Starts a mount daemon. Succeeds if a mount of the same plan is there and works. Replaces one whose daemon is gone.
  /// Errors: kAlreadyExists if another plan is mounted there; kInvalidArgument for a path outside kubelet's folder;
  /// kPreconditionFailed if a mount with a volume's own keys was there and `request` has the driver's, or if
  /// `exclusive` does not hold; what the daemon says if it cannot start.
  virtual Status Mount(const MountRequest& request) = 0;
  /// Shows the mount at `source` also at `target`, which is made if it is missing. Succeeds if it is there.
  /// Errors: kNotFound if no mount of ours is at `source`; kAlreadyExists if `target` shows something else;
  /// kPreconditionFailed if `exclusive` does not hold.
  virtual Status Bind(const BindRequest& request) = 0;
  /// Unmounts; if a daemon serves only this target, waits until everything written is in the store. Removes the folder
  /// if `remove_folder`. Succeeds if nothing is there.
  /// Errors: kBusy while programs use it; kDeadlineExceeded while the daemon still publishes.
  virtual Status Unmount(const std::string& target, bool remove_folder) = 0;
  /// Errors: kNotFound if nothing of ours is mounted there.
  virtual Result<MountState> Inspect(const std::string& target) = 0;
};

/// The time that a caller waits for a mounter in another process, which has limits of its own that are shorter.
struct MounterTimeouts {
  Duration change = std::chrono::seconds(150);  ///< Mount and Unmount: a daemon starts, or publishes
  Duration look = std::chrono::seconds(45);     ///< Bind and Inspect: a daemon is asked
};

/// A name of what a plan shows and how, without whose keys it uses.
std::string PlanFingerprint(const MountPlan& plan);

}  // namespace millrace::csi
