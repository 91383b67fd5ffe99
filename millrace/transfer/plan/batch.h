// Many transfers at a time, with a record of what came of each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/object/requests.h"

namespace millrace::transfer {

/// Running totals; any thread may read them.
struct BatchCounters {
  std::atomic<std::uint64_t> bytes_moved = 0, bytes_known = 0;  ///< known: of the items added so far
  std::atomic<std::uint64_t> bytes_resumed = 0;                 ///< that an earlier run had moved
  std::atomic<std::uint64_t> items_known = 0, items_done = 0, items_failed = 0;
  std::atomic<bool> all_known = false;  ///< no more items will be added
};

/// Runs jobs on up to `workers` threads, in the end the owner's among them, through a bounded queue. Threads come with
/// the work: a batch of one job has none of its own. Jobs get a Call whose token is the batch's. Add and Finish are for
/// one thread, the owner's; reports come one at a time from any thread.
class Batch {
 public:
  struct Outcome {
    const std::string& source;
    const std::string& destination;
    std::uint64_t size;
    const Status& status;
    bool needed = true;  ///< false: it was found to be done already
  };
  /// Yields false when there was nothing to do after all.
  using Job = std::move_only_function<Result<bool>(const object::Call&)>;
  /// One outcome for each source, in their order.
  using GroupJob = std::move_only_function<std::vector<Status>(const object::Call&)>;

  /// `report` is told of every item that ended, and of those that a stop kept from starting (kCancelled).
  Batch(int workers, std::stop_token stop, std::function<void(const Outcome&)> report);
  ~Batch();

  /// Blocks while the queue is full. Ignored after a stop.
  void Add(std::string source, std::string destination, std::uint64_t size, Job job);
  /// Items that are done together, such as the deletion of a page of keys. The names are reported as sources, or as
  /// destinations.
  void AddMany(std::vector<std::string> names, bool as_destination, GroupJob job);
  /// An item that failed before it could be a job.
  void AddFailure(std::string source, std::string destination, Error error);
  /// Waits for all jobs, at work as one of the threads.
  void Finish();
  BatchCounters& counters() { return counters_; }

 private:
  using Work = std::move_only_function<void()>;
  void Submit(Work work);
  void RunQueued();
  void Report(const Outcome& outcome) MR_EXCLUDES(report_mutex_);

  const std::stop_token stop_;
  const std::function<void(const Outcome&)> report_;
  Mutex report_mutex_;
  BatchCounters counters_;
  const int workers_;
  std::uint64_t submitted_ = 0;
  int started_ = 0;  ///< threads
  std::atomic<std::uint64_t> ended_ = 0;
  Channel<Work> queue_;
  TaskScope threads_;
};

}  // namespace millrace::transfer
