// The mounts of a node that its keeper has: they go on when their daemons die.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/csi/mounter/daemon_plan.h"

namespace millrace::csi {

/// Starts the daemons of mounts, and starts them again when they died. The keeper (mount/daemon/session_holder.h) has
/// the mounts and their plans meanwhile; a new keeper gets the plans from here. Without a keeper, does nothing.
/// Thread-safe. Calls block on the keeper.
class KeptMounts {
 public:
  /// Starts the daemon of a plan, and blocks until its mount answers.
  using Start = std::function<Status(const DaemonPlan& plan, Duration timeout, const std::stop_token& stop)>;
  /// `keeper`: its socket; empty: there is none. `start_timeout`: of the first daemon of a mount. `start` may be called
  /// from several threads.
  KeptMounts(std::filesystem::path keeper, Duration start_timeout, Start start, Logger log)
      : keeper_(std::move(keeper)), start_timeout_(start_timeout), start_(std::move(start)), log_(std::move(log)) {}
  ~KeptMounts() { Stop(); }

  bool has_keeper() const { return !keeper_.empty(); }
  /// Returns the name of a mount at the keeper.
  static std::string NameOf(const std::string& target);
  /// Returns the names at the keeper. Errors: kUnavailable if it does not answer.
  Result<std::set<std::string>> Names() const;
  /// Removes what a mounter left at the keeper that died before its daemon was there. Returns the names of the mounts
  /// that the keeper has.
  std::set<std::string> RemoveUnstarted() const;

  /// Starts the first daemon of a mount. The keeper gets the plan before, and forgets it if the start fails.
  Status StartFirst(const DaemonPlan& plan) MR_EXCLUDES(mutex_);
  /// Starts daemons again that died, and gives a keeper that lost its memory the plans. Returns the names of the mounts
  /// that the keeper has. Call it again and again.
  std::set<std::string> Watch() MR_EXCLUDES(mutex_);
  /// Compares the keys of a plan with those that the mount's process was started with. They differ if a Secret has
  /// changed. Then another process is started with the new keys, and goes on with what programs have open. `daemon`:
  /// the process that serves the mount; 0 if none answers.
  Status RenewKeys(const DaemonPlan& next, pid_t daemon) MR_EXCLUDES(mutex_);
  /// Returns true if the daemon of a mount died, and the next one does not get as far as to answer.
  bool CannotBeRestarted(const std::string& target) MR_EXCLUDES(mutex_);
  /// Ends a mount whose daemon cannot be started again: else its pod could never be removed. What was staged with a
  /// record stays for the volume's next mount.
  Status Abandon(const std::string& target, const std::string& volume) MR_EXCLUDES(mutex_);
  /// Call when a mount is gone.
  void ForgetMount(const std::string& target) MR_EXCLUDES(mutex_);
  /// Ends the starts that are under way, and waits for them. The next mounter starts these daemons.
  void Stop() MR_EXCLUDES(mutex_);

 private:
  /// The time of the next start of a daemon whose last start failed.
  struct Retry {
    TimePoint at;
    Duration pause;  ///< from there to the next try, if this one fails too
  };
  /// The start of a daemon whose mount is at the keeper. On a thread of its own, since the daemon asks its store.
  struct Starting {
    TimePoint began;
    std::shared_ptr<std::atomic<bool>> ended;
    std::jthread thread;
  };
  void BeginRestarts(const std::vector<std::string>& names) MR_EXCLUDES(mutex_);
  void Restart(const std::string& name, const std::stop_token& stop) MR_EXCLUDES(mutex_);

  // Constant after construction.
  const std::filesystem::path keeper_;
  const Duration start_timeout_;
  const Start start_;
  const Logger log_;

  // By the names at the keeper.
  Mutex mutex_;
  std::map<std::string, DaemonPlan> plans_ MR_GUARDED_BY(mutex_);  ///< of all mounts that the keeper has
  std::map<std::string, Retry> retries_ MR_GUARDED_BY(mutex_);
  std::map<std::string, Starting> starting_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::csi
