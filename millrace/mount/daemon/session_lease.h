// A keeper's clients: the daemon that serves a mount, and the process that starts daemons.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/mount/daemon/session_holder.h"

namespace millrace::mount {

/// A name at the keeper that this process holds: no other process serves the mount. Thread-safe.
class SessionLease {
 public:
  /// Errors: kBusy if another process holds the name; kUnavailable if there is no keeper; kDeadlineExceeded if it does
  /// not answer; kResourceExhausted if it is full.
  /// `timeout`: of each answer.
  static Result<std::unique_ptr<SessionLease>> Acquire(std::filesystem::path socket, std::string name, Logger log,
                                                       Duration timeout = kHolderTimeout);
  /// Ends the hold. The keeper keeps the descriptor, unless Drop was called.
  ~SessionLease();
  SessionLease(const SessionLease&) = delete;
  SessionLease& operator=(const SessionLease&) = delete;

  /// The FUSE descriptor that the keeper had, once; empty if it had none.
  UniqueFd TakeDevice() { return std::move(device_); }
  /// Gives the keeper a FUSE descriptor. From then on, a thread brings the descriptor, and the keeper's plan, to the
  /// next keeper if the keeper ends, or has ended. `device` is duplicated. Errors: those of fcntl(2).
  Status StoreDevice(int device) MR_EXCLUDES(mutex_);
  /// Call when the mount has ended.
  void ForgetSession() MR_EXCLUDES(mutex_);

 private:
  SessionLease(std::filesystem::path socket, std::string name, Logger log, Duration timeout)
      : socket_(std::move(socket)), name_(std::move(name)), log_(std::move(log)), timeout_(timeout) {}
  Result<UniqueFd> Connect() MR_REQUIRES(mutex_);
  Result<SessionHolderMessage> AskKeeper(std::string_view text, int descriptor = -1) MR_REQUIRES(mutex_);
  Status SendDevice() MR_REQUIRES(mutex_);
  void CheckConnection() MR_REQUIRES(mutex_);
  void Watch(const std::stop_token& stop) MR_EXCLUDES(mutex_);

  const std::filesystem::path socket_;
  const std::string name_;
  const Logger log_;
  const Duration timeout_;
  UniqueFd device_;
  Mutex mutex_;
  UniqueFd connection_ MR_GUARDED_BY(mutex_);
  UniqueFd kept_ MR_GUARDED_BY(mutex_);
  UniqueFd plan_ MR_GUARDED_BY(mutex_);               ///< what starts the next daemon, for the next keeper
  bool awaits_answer_ MR_GUARDED_BY(mutex_) = false;  ///< to a message that the keeper has not answered in time
  std::jthread watcher_;
};

/// The state of a name at a keeper.
struct HeldSessionInfo {
  std::string name;
  bool held = false;        ///< a process serves it
  bool has_device = false;  ///< it can be taken over
  bool has_plan = false;
};

/// The calls of the process that starts daemons. Each blocks for at most a few times kHolderTimeout.
/// Errors: kUnavailable if there is no keeper; kDeadlineExceeded if it does not answer, so that nobody knows whether it
/// will do what was asked; kResourceExhausted if it is full.
Result<std::vector<HeldSessionInfo>> ListHeldSessions(const std::filesystem::path& socket);
/// Leaves what starts a daemon with the keeper: in its memory alone, since it may have secrets.
Status StoreDaemonPlan(const std::filesystem::path& socket, std::string_view name, std::string_view plan);
/// Errors: kNotFound if the keeper has no plan for the name.
Result<std::string> ReadDaemonPlan(const std::filesystem::path& socket, std::string_view name);
/// Makes the keeper forget a name. The mount ends if nobody serves it. Errors: kBusy if a process holds it.
Status ForgetHeldSession(const std::filesystem::path& socket, std::string_view name);

}  // namespace millrace::mount
