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

/// A bounded queue of files that wait for their publication. Each file has a time at which it is due. Up to
/// Options::parallel due files are published at the same time, the earliest first. A file that fails is retried with
/// exponential back-off, without a limit. No file is published twice at the same time.
///
/// Thread-safe. The destructor cancels attempts and forgets the other files, whose content is on the disk.
class Publisher {
 public:
  struct Options {
    int parallel = 8;
    std::size_t most = 4096;  ///< files that wait; beyond this bound, File::Close publishes
    Duration first_retry = std::chrono::seconds(1), longest_retry = std::chrono::minutes(1);
  };
  /// Publishes a file, if it has anything to publish. Runs on one of the publisher's threads.
  using Attempt = std::function<Status(const InodePtr&, const object::Call&)>;
  /// Called when a file has left the queue. Runs on one of the publisher's threads.
  using Finished = std::function<void(const InodePtr&)>;

  Publisher(Options options, Clock& clock, Attempt attempt, Finished finished);
  ~Publisher();

  /// Queues a file, which is due after `delay`. A file that is in the queue keeps its time. A file that is being
  /// published is published once more. Returns true if the file was not in the queue. Errors: kResourceExhausted if the
  /// queue is full.
  Result<bool> Add(const InodePtr& inode, Duration delay) MR_EXCLUDES(mutex_);
  bool Waits(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// Tries once to publish each file that is in the queue now, due or not. Blocks. Returns the first failure.
  Status Flush(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Tries the files that have not failed at once, and blocks until one file is published. Returns false if all files
  /// have failed, or `call` ends first.
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

  // In this order: the scheduler uses the workers.
  object::WorkQueue workers_;
  TaskScope scheduler_;
};

}  // namespace millrace::vfs
