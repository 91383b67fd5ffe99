// Bounds the number of asynchronous calls that one job has in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "millrace/base/threads/sync.h"
#include "millrace/object/requests.h"

namespace millrace::transfer {

/// At most `limit` calls are in flight. The first failure stops the others. The job's thread calls Enter() before each
/// call and Finish() at the end; the completion of each call calls Leave(). The destructor cancels and waits.
class Window {
 public:
  Window(int limit, const object::Call& caller)
      : limit_(limit < 1 ? 1 : limit),
        deadline_(caller.deadline),
        on_caller_(caller.stop, [this] { stop_.request_stop(); }) {}
  ~Window() {
    stop_.request_stop();
    (void)Finish();
  }

  /// Blocks until fewer than `limit` calls are in flight, and counts a new one. Returns false if a call has failed:
  /// start no more.
  bool Enter() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (status_ && in_flight_ >= limit_) changed_.Wait(mutex_);
    if (status_) ++in_flight_;
    return status_.has_value();
  }
  /// Ends a call with its outcome.
  void Leave(Status status) MR_EXCLUDES(mutex_) {
    if (!status) stop_.request_stop();
    MutexLock lock(mutex_);
    if (!status && status_) status_ = std::move(status);
    --in_flight_;
    ++left_;
    changed_.NotifyAll();  // under the lock: once it is released, the window may be destroyed
  }
  /// The state of the calls, for an owner that works beside them.
  struct Progress {
    int in_flight = 0;
    bool full = false;       ///< Enter() would block
    std::uint64_t left = 0;  ///< the number of completed calls
  };
  Progress progress() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return {in_flight_, status_ && in_flight_ >= limit_, left_};
  }
  /// Blocks until a call has completed since `seen`. REQUIRES: seen.in_flight > 0.
  void AwaitLeave(const Progress& seen) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (left_ == seen.left) changed_.Wait(mutex_);
  }
  /// Blocks until all calls have completed. Returns the first failure.
  Status Finish() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (in_flight_ > 0) changed_.Wait(mutex_);
    return status_;
  }
  /// Returns the stop token and deadline to start the calls with.
  object::Call call() const { return {.stop = stop_.get_token(), .deadline = deadline_}; }

 private:
  const int limit_;
  const Deadline deadline_;
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> on_caller_;
  Mutex mutex_;
  CondVar changed_;
  int in_flight_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t left_ MR_GUARDED_BY(mutex_) = 0;
  Status status_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::transfer
