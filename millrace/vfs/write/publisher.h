// A queue of files that are published in the background.
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

/// A bounded queue of files that wait for their publication. A file is tried when its time has come, a few files at the
/// same time, the file that waits longest first. A file that fails is tried again with exponential back-off, without an
/// end. A file is never tried twice at the same time.
///
/// Thread-safe. Destruction cancels what is under way and forgets the rest: its content is on the disk.
class Publisher {
 public:
  struct Options {
    int parallel = 8;
    std::size_t most = 4096;  ///< files that wait
    Duration first_retry = std::chrono::seconds(1), longest_retry = std::chrono::minutes(1);
  };
  /// Publishes a file, or finds that there is nothing (more) to publish. Runs on one of the publisher's threads.
  using Attempt = std::function<Status(const InodePtr&, const object::Call&)>;
  /// A file does not wait any more. Runs on one of the publisher's threads.
  using Finished = std::function<void(const InodePtr&)>;

  Publisher(Options options, Clock& clock, Attempt attempt, Finished finished);
  ~Publisher();

  /// Queues a file, to be published `delay` from now. A file that waits already keeps its time. A file that is being
  /// published is published once more. Returns true if the file did not wait before. Errors: kResourceExhausted if too
  /// many files wait.
  Result<bool> Add(const InodePtr& inode, Duration delay) MR_EXCLUDES(mutex_);
  bool Waits(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// Tries every file that waits now, once, without regard to its time. Blocks. Returns the first failure.
  Status Flush(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Blocks until one more file is published. Files that have not failed are tried at once. Returns false if there are
  /// none.
  bool AwaitProgress(const object::Call& call) MR_EXCLUDES(mutex_);

  struct Stats {
    int waiting = 0, failing = 0;
    std::uint64_t failures = 0;  ///< attempts that failed, since the start
    std::optional<Error> error;  ///< of the file that has failed most often
  };
  Stats stats() const MR_EXCLUDES(mutex_);

 private:
  struct QueuedFile {
    InodePtr inode;
    TimePoint due;
    int failures = 0;
    std::optional<Error> error;
    bool running = false, again = false;
    bool flushing = false;  ///< Flush waits for an attempt that begins from now on
  };
  using QueuedFiles = std::map<InodeId, QueuedFile>;

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
  QueuedFiles files_ MR_GUARDED_BY(mutex_);
  TimePoint next_look_ MR_GUARDED_BY(mutex_);     ///< when the scheduler wakes up
  std::stop_source sleep_ MR_GUARDED_BY(mutex_);  ///< wakes the scheduler up before
  std::uint64_t done_ MR_GUARDED_BY(mutex_) = 0, failures_ MR_GUARDED_BY(mutex_) = 0;

  // In this order: the scheduler hands work to the workers.
  object::WorkQueue workers_;
  TaskScope scheduler_;
};

}  // namespace millrace::vfs
