// One loop over several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace {

/// Calls `make_worker()` once on each of `threads` threads, which are named `name`. Then calls these workers once for
/// every i < count; calls start in ascending order of i. Blocks until all have returned.
/// Returns the first failure by time, which also stops the other workers. Errors: kCancelled if `stop` fires.
inline Status ParallelFor(std::string name, std::uint64_t count, int threads, std::stop_token stop,
                          const std::function<std::function<Status(std::uint64_t, std::stop_token)>()>& make_worker) {
  std::stop_source cancel;
  std::stop_callback relay(stop, [&] { cancel.request_stop(); });
  std::atomic<std::uint64_t> next = 0;
  Mutex mutex;
  Status outcome;
  {
    TaskScope scope;
    for (int t = 0; t < threads && static_cast<std::uint64_t>(t) < count; ++t) {
      scope.Spawn(name, [&](std::stop_token) {
        auto worker = make_worker();
        for (std::uint64_t i; !cancel.stop_requested() && (i = next.fetch_add(1)) < count;) {
          Status done = worker(i, cancel.get_token());
          if (done) continue;
          MutexLock lock(mutex);
          if (outcome && !cancel.stop_requested()) outcome = std::move(done);
          cancel.request_stop();
        }
      });
    }
    scope.Join();
  }
  if (outcome && stop.stop_requested()) return Fail(Code::kCancelled, "interrupted");
  return outcome;
}

}  // namespace millrace
