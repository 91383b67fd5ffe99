// A rank's presence in shared memory: tells other ranks whether the rank's process lives.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "millrace/base/threads/sync.h"

namespace millrace::collectives {

/// A rank's sign of life in shared memory: a mutex that the rank holds as long as it lives. When a process ends,
/// however it ends, the kernel releases its robust mutexes (pthread_mutexattr_setrobust). So this needs no heartbeat
/// and no process ids, which differ between containers.
class SharedPresence {
 public:
  enum class State { kExpected, kPresent, kLeft, kDead };

  /// Call it once, before any rank attaches.
  void Initialize();
  /// Returns the state of the rank. Never blocks. Any rank may call it.
  State Look();

 private:
  friend class PresenceHolder;

  pthread_mutex_t mutex_;
  std::atomic<State> announced_;
};

/// Holds a presence from construction to destruction, on a thread of its own: a mutex belongs to a thread, and the
/// caller's may end before its group.
class PresenceHolder {
 public:
  /// `presence` outlives this object.
  explicit PresenceHolder(SharedPresence& presence);
  ~PresenceHolder();

 private:
  void Hold(SharedPresence& presence) MR_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool held_ MR_GUARDED_BY(mutex_) = false, leaving_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::collectives
