// Group commit: one fdatasync serves all threads that wait for it.
#pragma once

#include <cstdint>
#include <functional>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::s3d {

/// Makes the writes of many threads durable. A thread that finds no flush in progress flushes for all threads that have
/// written so far; the others wait for it. Thread-safe.
class GroupSync {
 public:
  /// `flush` makes everything durable that was written before the call. It is called without locks, one call at a time.
  explicit GroupSync(std::function<Status()> flush) : flush_(std::move(flush)) {}

  /// Blocks until everything that the caller has written is durable. After a failed flush all calls fail, because the
  /// content of the disk is unknown.
  Status Sync() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const std::uint64_t mine = ++written_;
    for (;;) {
      if (!failure_) return failure_;
      if (durable_ >= mine) return {};
      if (flushing_) {
        flushed_.Wait(mutex_);
        continue;
      }
      flushing_ = true;
      std::uint64_t target = written_;
      lock.Unlock();
      Status done = flush_();
      lock.Lock();
      flushing_ = false;
      if (done) {
        durable_ = target;
      } else {
        failure_ = done;
      }
      flushed_.NotifyAll();
    }
  }

 private:
  const std::function<Status()> flush_;
  Mutex mutex_;
  CondVar flushed_;
  std::uint64_t written_ MR_GUARDED_BY(mutex_) = 0;  ///< the number of calls so far
  std::uint64_t durable_ MR_GUARDED_BY(mutex_) = 0;  ///< the first `durable_` calls need not wait any more
  bool flushing_ MR_GUARDED_BY(mutex_) = false;
  Status failure_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::s3d
