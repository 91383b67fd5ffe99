// The death of a process, simulated within a test: its earlier changes of the store and the staging folder stay, later
// ones never happen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

/// Simulates a crash at a step. A step is every system call of this process that changes a file, and every request that
/// changes a CrashingStore. Just before step `dies_at` the simulated process dies: the staging folder is copied to
/// `remains`, where no destructor can change it. Only one may exist at a time. Thread-safe.
class CrashSimulation {
 public:
  CrashSimulation(std::filesystem::path staging, std::filesystem::path remains, std::uint64_t dies_at);
  ~CrashSimulation();
  CrashSimulation(const CrashSimulation&) = delete;
  CrashSimulation& operator=(const CrashSimulation&) = delete;

  /// Runs `action` as one step. Returns false, and passes false to `action`, if the process is dead. A dead process may
  /// still change its own files, since the copy is elsewhere.
  template <class Action>
  bool Step(Action action) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const bool alive = Advance();
    action(alive);
    return alive;
  }
  /// Makes the process die now, unless it is dead.
  void Die() MR_EXCLUDES(mutex_);
  bool dead() const MR_EXCLUDES(mutex_);
  std::uint64_t steps() const MR_EXCLUDES(mutex_);

 private:
  bool Advance() MR_REQUIRES(mutex_);
  void LeaveRemains() MR_REQUIRES(mutex_);

  const std::filesystem::path staging_, remains_;
  const std::uint64_t dies_at_;
  mutable Mutex mutex_;
  std::uint64_t steps_ MR_GUARDED_BY(mutex_) = 0;
  bool dead_ MR_GUARDED_BY(mutex_) = false;
};

/// Returns the store `inner` as the process sees it: unreachable once the process is dead. A request under way at the
/// death may take effect or not. `life` must outlive the store.
std::shared_ptr<object::Store> MakeCrashingStore(std::shared_ptr<object::Store> inner, CrashSimulation& life);

}  // namespace millrace::vfs
