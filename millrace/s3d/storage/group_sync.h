// fdatasync shared by everybody who waits for it.
#pragma once

#include <cstdint>
#include <functional>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::s3d {

/// Makes writes durable for many writers at once: whoever finds no flush under way flushes for all that have written so
/// far, the others wait for it. Any thread may call.
class GroupSync {
 public:
  /// `flush` makes everything durable that was written before it was called. Runs without locks held, one at a time.
  explicit GroupSync(std::function<Status()> flush) : flush_(std::move(flush)) {}

  /// Blocks until what the caller has written before is durable. A failed flush is final: what the disk holds is then
  /// unknown.
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
  std::uint64_t written_ MR_GUARDED_BY(mutex_) = 0;  ///< writers that have come
  std::uint64_t durable_ MR_GUARDED_BY(mutex_) = 0;  ///< of them, the first so many need wait no more
  bool flushing_ MR_GUARDED_BY(mutex_) = false;
  Status failure_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::s3d
