// A call of Scheduler::Embed between its caller and the scheduler's thread.
#pragma once

#include <atomic>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/serve/scheduler.h"

namespace millrace::serve {

/// A call whose texts become vectors in their order. The scheduler's thread changes `vectors`, and the caller reads
/// them once `has_ended`.
struct EmbeddingJob {
  const EmbeddingTask task;
  std::vector<std::vector<float>> vectors = {};
  std::atomic<bool> cancelled{false};
  Mutex mutex;
  CondVar changed;
  bool has_ended MR_GUARDED_BY(mutex) = false;
  Status result MR_GUARDED_BY(mutex) = {};

  void End(Status how) {
    MutexLock lock(mutex);
    result = std::move(how);
    has_ended = true;
    lock.Unlock();
    changed.NotifyAll();
  }
};

}  // namespace millrace::serve
