// Makes the mounts of a node in this process's mount namespace. Each mount is a daemon of its own, `millrace mount`, so
// that one volume's failure is not another's, and each has only its own keys.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/threads/sync.h"
#include "millrace/csi/mounter/daemon_plan.h"
#include "millrace/csi/mounter/in_flight.h"
#include "millrace/csi/mounter/kept_mounts.h"
#include "millrace/csi/mounter/kubelet_folder.h"
#include "millrace/csi/mounter/mount_records.h"
#include "millrace/csi/mounter/mounter.h"
#include "millrace/mount/unmount.h"

namespace millrace::csi {

struct LocalMounterOptions {
  std::string program;  ///< the path of `millrace`
  std::string kubelet_folder = "/var/lib/kubelet";
  /// A folder of the mounter's own: records of mounts, their logs, staged writes and cached blocks.
  std::filesystem::path state_folder;
  std::uint64_t mount_memory = 512 * kMiB;  ///< of each daemon, unless its volume says otherwise
  std::uint64_t node_memory = 0;            ///< of all daemons together; 0: no limit
  std::uint64_t cache_bytes = 20 * kGiB;    ///< of the disk cache that the node's volumes share
  Duration start_timeout = std::chrono::seconds(60);
  Duration probe_timeout = std::chrono::seconds(10);
  /// The socket of the node's keeper (mount/daemon/session_holder.h). Empty: a mount ends with its daemon.
  std::filesystem::path keeper;
  metrics::Registry* metrics = nullptr;  ///< for the figures of mounts; null: none
  Logger log;
};

/// Daemons go on when the LocalMounter is destroyed, and the next one finds them in the mount table. With a keeper,
/// daemons that died, of this or an earlier LocalMounter, are started again, and go on with their mounts. Thread-safe.
class LocalMounter final : public Mounter {
 public:
  /// Detaches what mounters before left behind without a daemon.
  /// Errors: those of opening the two folders.
  static Result<std::unique_ptr<LocalMounter>> Open(LocalMounterOptions options);
  ~LocalMounter() override;

  Status Mount(const MountRequest& request) override;
  Status Bind(const BindRequest& request) override;
  Status Unmount(const std::string& target, bool remove_folder) override;
  Result<MountState> Inspect(const std::string& target) override;

  /// Waits until the mounts have published the files that programs have closed, but no longer than `at_most`, and not
  /// for files whose publication fails. Returns how many files it waited for in vain.
  int AwaitPublished(Duration at_most);

 private:
  struct Daemon {
    std::string volume;
    Subprocess process;
  };
  LocalMounter(LocalMounterOptions options, KubeletFolder folder);
  void CleanUp(const std::set<std::string>& kept);
  Result<std::vector<std::string>> FindOtherPoints(const std::string& device, const std::string& path) const;
  Result<InFlightTable::Hold> HoldVolume(const std::string& volume, bool exclusive);
  Status CheckExclusive(const std::string& volume, const std::string& target, const std::string& staging) const;
  Result<std::uint64_t> MemoryOf(const MountPlan& plan) const;
  Status TakeMemory(const std::string& target, std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void ReleaseMemory(const std::string& target) MR_EXCLUDES(mutex_);
  void WatchDaemons(const std::stop_token& stop) MR_EXCLUDES(mutex_);

  Status MountHere(const MountRequest& request, const TargetPath& target) MR_EXCLUDES(mutex_);
  Status MountAnew(const MountRequest& request, const TargetPath& target, std::uint64_t memory) MR_EXCLUDES(mutex_);
  Status StartDaemon(const MountRequest& request, const TargetPath& target) MR_EXCLUDES(mutex_);
  std::filesystem::path StagingOf(const std::string& volume) const;
  std::filesystem::path StagingOf(const std::string& volume, const TargetPath& target) const;
  DaemonPlan PlanDaemon(const MountRequest& request, const TargetPath& target) const;
  void HandOverStaged(const std::string& volume, const TargetPath& target) const;
  Subprocess::Options DaemonOptions(const MountRequest& request, const TargetPath& target) const;
  Status StartDaemon(const DaemonPlan& plan, Duration timeout, const std::stop_token& stop) MR_EXCLUDES(mutex_);
  void KillDaemon(const std::string& target) MR_EXCLUDES(mutex_);
  struct EndedDaemon {
    std::string volume, target, cause;
  };
  std::vector<EndedDaemon> TakeEnded() MR_EXCLUDES(mutex_);
  Status WriteToken(const MountRequest& request, const TargetPath& target) const;
  Status StopDaemon(const std::string& path, const MountRecord& record) MR_EXCLUDES(mutex_);
  Status UnmountHere(const TargetPath& target) MR_EXCLUDES(mutex_);

  // Constant after construction.
  const LocalMounterOptions options_;
  const KubeletFolder folder_;
  const MountRecords records_;

  InFlightTable in_flight_;
  Mutex mutex_;
  std::map<std::string, Daemon> daemons_ MR_GUARDED_BY(mutex_);        ///< by target
  std::map<std::string, std::uint64_t> memory_ MR_GUARDED_BY(mutex_);  ///< of the mounts, by target; bytes
  const std::unique_ptr<KeeperClient> keeper_;
  KeptMounts kept_;
  std::jthread watcher_;
};

}  // namespace millrace::csi
