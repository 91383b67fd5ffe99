// A process that dies, within a test: what it did to the store and to its staging folder stays, what it was about to do
// never happens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

/// From its construction to its end, every system call of this process that changes a file, and every request that
/// changes a CrashingStore, is a step. It dies just before step `dies_at`, by which its staging folder is copied as it
/// is at that moment: no destructor can tidy there. One at a time. Thread-safe.
class CrashSimulation {
 public:
  CrashSimulation(std::filesystem::path staging, std::filesystem::path remains, std::uint64_t dies_at);
  ~CrashSimulation();
  CrashSimulation(const CrashSimulation&) = delete;
  CrashSimulation& operator=(const CrashSimulation&) = delete;

  /// Does what is one step, alone. False when the process is dead; what a dead one does to its files is in nobody's
  /// way.
  template <class Action>
  bool Step(Action action) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const bool alive = Advance();
    action(alive);
    return alive;
  }
  /// Dies now, unless it has.
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

/// What the process reaches of `inner`: nothing, once it is dead. A request under way at its death takes effect, or
/// does not. `life` must outlive it.
std::shared_ptr<object::Store> MakeCrashingStore(std::shared_ptr<object::Store> inner, CrashSimulation& life);

}  // namespace millrace::vfs
