// The mounts of a node that its keeper has: they go on when their daemons die.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/csi/mounter/daemon_plan.h"
#include "millrace/csi/mounter/keeper_client.h"
#include "millrace/csi/mounter/mount_states.h"
#include "millrace/metrics/metrics.h"

namespace millrace::csi {

struct KeptMountsOptions {
  KeeperClient* keeper = nullptr;  ///< null: there is none
  Duration start_timeout;          ///< of the first daemon of a mount
  /// Starts the daemon of a plan, and blocks until its mount answers. Called from several threads.
  std::function<Status(const DaemonPlan& plan, Duration timeout, const std::stop_token& stop)> start;
  /// Kills the daemon that `start` started last for this target.
  std::function<void(const std::string& target)> kill;
  /// Detaches the mount at a target.
  std::function<Status(const std::string& target)> detach;
  metrics::Registry* metrics = nullptr;  ///< null: no figures
  Clock* clock = &SystemClock();
  Logger log;
};

/// Starts the daemons of mounts, and starts them again when they died. The keeper (mount/daemon/session_holder.h) has
/// the mounts and their plans meanwhile; a new keeper gets the plans from here. Without a keeper, does nothing.
/// Thread-safe. Calls block on the keeper, for no longer than its client waits.
class KeptMounts {
 public:
  explicit KeptMounts(KeptMountsOptions options) : options_(std::move(options)) {}
  ~KeptMounts() { Stop(); }

  bool has_keeper() const { return options_.keeper != nullptr; }
  /// Returns the name of a mount at the keeper.
  static std::string NameOf(const std::string& target);
  /// Returns the names at the keeper. Errors: kUnavailable or kDeadlineExceeded if it does not answer.
  Result<std::set<std::string>> Names() const;

  /// Starts the first daemon of a mount. The keeper gets the plan before, and forgets it if the start fails.
  Status StartFirst(const DaemonPlan& plan) MR_EXCLUDES(mutex_);
  /// Asks the keeper, and does what follows (mount_states.h): starts daemons again that died, reads plans that only the
  /// keeper has, gives a keeper that lost its memory the plans. Returns the names of the mounts that the keeper has; a
  /// keeper that does not answer has all that are known. Call it again and again.
  std::set<std::string> Watch() MR_EXCLUDES(mutex_);
  /// Compares the keys of a plan with those that the mount's process was started with. They differ if a Secret has
  /// changed. Then another process is started with the new keys, and goes on with what programs have open. `daemon`: a
  /// pidfd of the process that serves the mount; empty if none answers.
  /// Errors: those of the keeper; then the old keys stay in use, and the same call tries again.
  Status RenewKeys(const DaemonPlan& next, const UniqueFd& daemon) MR_EXCLUDES(mutex_);
  /// Returns true if the daemon of a mount died, and the next one does not get as far as to answer.
  bool CannotBeRestarted(const std::string& target) MR_EXCLUDES(mutex_);
  /// Ends a mount whose daemon cannot be started again: else its pod could never be removed. What was staged with a
  /// record stays for the volume's next mount.
  Status Abandon(const std::string& target, const std::string& volume) MR_EXCLUDES(mutex_);
  /// Call when a mount is gone.
  void ForgetMount(const std::string& target) MR_EXCLUDES(mutex_);
  /// Blocks until the starts that are under way have ended.
  void AwaitStarts() MR_EXCLUDES(mutex_);
  /// Ends the starts that are under way, and waits for them. The next mounter starts these daemons.
  void Stop() MR_EXCLUDES(mutex_);

 private:
  /// The start of a daemon whose mount is at the keeper. On a thread of its own, since the daemon asks its store.
  struct RunningStart {
    std::shared_ptr<std::atomic<bool>> ended;
    std::jthread thread;
  };
  Result<std::vector<mount::HeldSessionInfo>> Ask() MR_EXCLUDES(mutex_);
  void Run(const std::string& name, std::uint64_t number) MR_EXCLUDES(mutex_);
  void Restart(const std::string& name, std::uint64_t number, const std::stop_token& stop) MR_EXCLUDES(mutex_);
  Status ReplaceKeys(const DaemonPlan& next, const UniqueFd& daemon) MR_EXCLUDES(mutex_);
  void CountStart(bool failed);
  void ShowPhases() MR_REQUIRES(mutex_);

  const KeptMountsOptions options_;

  Mutex mutex_;
  MountStates states_ MR_GUARDED_BY(mutex_);
  std::map<std::string, RunningStart> running_ MR_GUARDED_BY(mutex_);
  std::set<std::string> unreadable_ MR_GUARDED_BY(mutex_);  ///< the log says already that their plans are
  bool is_silent_ MR_GUARDED_BY(mutex_) = false;            ///< the log says already that the keeper does not answer
};

}  // namespace millrace::csi
