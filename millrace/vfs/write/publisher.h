// Files that are to be published in the background, and when.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/object/store.h"
#include "millrace/object/support/work_queue.h"
#include "millrace/vfs/metadata/inode_table.h"

namespace millrace::vfs {

/// A bounded set of files that wait for their publication. Each is tried when its time has come, a few at once and the
/// ones that wait longest first; one that fails is tried again after a while that doubles each time, for ever. A file
/// is never tried twice at the same time.
///
/// Thread-safe. Destruction cancels what is under way and forgets the rest: what must not be lost lies on disk.
class Publisher {
 public:
  struct Options {
    int parallel = 8;
    std::size_t most = 4096;  ///< files that wait
    Duration first_retry = std::chrono::seconds(1), longest_retry = std::chrono::minutes(1);
  };
  /// Publishes a file, or finds that there is nothing (more) to publish. Runs on one of the publisher's threads.
  using Attempt = std::function<Status(const InodePtr&, const object::Call&)>;
  /// A file does not wait any more. Likewise.
  using Finished = std::function<void(const InodePtr&)>;

  Publisher(Options options, Clock& clock, Attempt attempt, Finished finished);
  ~Publisher();

  /// Has the file published `delay` from now; one that waits already stays where it is, and one that is being published
  /// comes once more. kResourceExhausted when too many wait. True: it did not wait before.
  Result<bool> Add(const InodePtr& inode, Duration delay) MR_EXCLUDES(mutex_);
  bool Waits(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// Tries everything that waits now, once, whenever it is due. Fails with the first failure that is left.
  Status Flush(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Waits until one file more is published, hurrying those that have not failed; false when there are none.
  bool AwaitProgress(const object::Call& call) MR_EXCLUDES(mutex_);

  struct Stats {
    int waiting = 0, failing = 0;
    std::uint64_t failures = 0;  ///< attempts that failed, since the start
    std::optional<Error> error;  ///< of the file that has failed most often
  };
  Stats stats() const MR_EXCLUDES(mutex_);

 private:
  struct Item {
    InodePtr inode;
    TimePoint due;
    int failures = 0;
    std::optional<Error> error;
    bool running = false, again = false;
    bool flushing = false;  ///< somebody waits for an attempt that begins from now on
  };
  using Items = std::map<InodeId, Item>;

  void Schedule(const std::stop_token& stop) MR_EXCLUDES(mutex_);
  TimePoint StartDue() MR_REQUIRES(mutex_);
  void Run(InodeId id) MR_EXCLUDES(mutex_);
  void WakeFor(TimePoint due) MR_REQUIRES(mutex_);
  Duration RetryDelay(int failures) const;

  const Options options_;
  Clock& clock_;
  const Attempt attempt_;
  const Finished finished_;
  std::stop_source stop_;  ///< of attempts

  mutable Mutex mutex_;
  CondVar changed_;
  Items items_ MR_GUARDED_BY(mutex_);
  TimePoint next_look_ MR_GUARDED_BY(mutex_);     ///< until when the scheduler sleeps
  std::stop_source sleep_ MR_GUARDED_BY(mutex_);  ///< ends that
  std::uint64_t done_ MR_GUARDED_BY(mutex_) = 0, failures_ MR_GUARDED_BY(mutex_) = 0;

  // In this order: the scheduler hands work to the workers.
  object::WorkQueue workers_;
  TaskScope scheduler_;
};

}  // namespace millrace::vfs
