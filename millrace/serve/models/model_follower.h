// Serves the newest checkpoint of a run while the run goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/serve/models/served_scheduler.h"

namespace millrace::serve {

/// The counters of a ModelFollower since it started.
struct FollowCounters {
  std::uint64_t step = 0;  ///< of the checkpoint that new requests get
  std::uint64_t reloads = 0, failed_reloads = 0;
};

/// Looks for newer checkpoints from time to time, on a thread of its own. Loads a newer one beside the model that is
/// served, and lets new requests go to it. Requests under way end with the weights that they began with; then the old
/// model's memory is free. There are never more than two models: while requests have the old one, no other is loaded.
/// If a checkpoint cannot be loaded, the server keeps what it has. It tries that checkpoint again only after errors
/// that may pass. Thread-safe.
class ModelFollower {
 public:
  struct Options {
    Duration every = std::chrono::seconds(30);
    /// Returns the step of the newest committed checkpoint; nothing if there is none. Blocks.
    std::function<Result<std::optional<std::uint64_t>>(std::stop_token)> find_newest;
    /// Loads the checkpoint of a step. Blocks.
    std::function<Result<std::shared_ptr<Scheduler>>(std::uint64_t step, std::stop_token)> load;
    Logger log = {};
  };
  /// `step`: of the checkpoint that is served. REQUIRES: `served` and `clock` outlive this object.
  ModelFollower(ServedScheduler& served, std::uint64_t step, Clock& clock, Options options);

  FollowCounters counters() const MR_EXCLUDES(mutex_);

 private:
  void Run(std::stop_token stop);
  void Look(std::stop_token stop) MR_EXCLUDES(mutex_);

  ServedScheduler& served_;
  Clock& clock_;
  const Options options_;
  std::optional<std::uint64_t> refused_;  ///< the step that cannot be loaded; of the thread
  mutable Mutex mutex_;
  FollowCounters counters_ MR_GUARDED_BY(mutex_);
  TaskScope scope_;  ///< the last member: joined before the others are destroyed
};

}  // namespace millrace::serve
