// Mutex, lock and condition variable with annotations for clang's thread-safety analysis (libstdc++ has none).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#if defined(__clang__)
#define MR_TSA(x) __attribute__((x))
#else
#define MR_TSA(x)
#endif
#define MR_GUARDED_BY(mutex) MR_TSA(guarded_by(mutex))
#define MR_REQUIRES(...) MR_TSA(requires_capability(__VA_ARGS__))
#define MR_EXCLUDES(...) MR_TSA(locks_excluded(__VA_ARGS__))
#define MR_NO_THREAD_SAFETY_ANALYSIS MR_TSA(no_thread_safety_analysis)

namespace millrace {

class MR_TSA(capability("mutex")) Mutex {
 public:
  void lock() MR_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() MR_TSA(release_capability()) { mutex_.unlock(); }
  bool try_lock() MR_TSA(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope. Unlock() and Lock() release and take it within the scope.
class MR_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MR_TSA(acquire_capability(mutex)) : mutex_(mutex), held_(true) { mutex_.lock(); }
  ~MutexLock() MR_TSA(release_capability()) {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void Unlock() MR_TSA(release_capability()) {
    mutex_.unlock();
    held_ = false;
  }
  void Lock() MR_TSA(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_;
};

/// A condition variable for Mutex. The caller holds the mutex during every Wait. The Wait without `ready` may wake up
/// without a notification: check the condition in a loop.
class CondVar {
 public:
  void Wait(Mutex& mutex) MR_TSA(requires_capability(mutex)) { cv_.wait(mutex); }
  /// Blocks until ready() holds or `stop` fires. Returns ready().
  template <class Ready>
  bool Wait(Mutex& mutex, std::stop_token stop, Ready ready) MR_TSA(requires_capability(mutex)) {
    return cv_.wait(mutex, std::move(stop), std::move(ready));
  }
  /// Blocks until ready() holds, `stop` fires or `when` has passed. Returns ready().
  template <class Ready>
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point when, std::stop_token stop, Ready ready)
      MR_TSA(requires_capability(mutex)) {
    return cv_.wait_until(mutex, std::move(stop), when, std::move(ready));
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace millrace
