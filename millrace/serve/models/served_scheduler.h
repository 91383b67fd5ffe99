// The scheduler that new requests go to, which a newer one may replace while requests are under way.
#pragma once

#include <memory>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/serve/scheduler.h"

namespace millrace::serve {

/// Holds the current scheduler and those that were replaced and still make texts. Thread-safe.
class ServedScheduler {
 public:
  explicit ServedScheduler(std::shared_ptr<Scheduler> scheduler) : current_(std::move(scheduler)) {}

  /// Returns the scheduler for a new request. The request keeps it until its texts have ended.
  std::shared_ptr<Scheduler> Get() const MR_EXCLUDES(mutex_);
  /// New requests go to `next` from now on; the others end where they are.
  void Replace(std::shared_ptr<Scheduler> next) MR_EXCLUDES(mutex_);
  /// Destroys replaced schedulers that no request has. Returns how many are left.
  int DropEnded() MR_EXCLUDES(mutex_);

  /// Texts of all schedulers, the replaced ones too.
  int running() const MR_EXCLUDES(mutex_);
  int waiting() const MR_EXCLUDES(mutex_);
  /// Blocks of the cache are those of the current scheduler; the other numbers are sums since the start.
  SchedulerCounters counters() const MR_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<Scheduler> current_ MR_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Scheduler>> replaced_ MR_GUARDED_BY(mutex_);
  SchedulerCounters ended_ MR_GUARDED_BY(mutex_);  ///< of those that were destroyed
};

}  // namespace millrace::serve
