// Runs many transfers in parallel and reports the outcome of each.
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

/// Running totals. Any thread may read them.
struct BatchCounters {
  std::atomic<std::uint64_t> bytes_moved = 0, bytes_known = 0;  ///< known: of the items added so far
  std::atomic<std::uint64_t> bytes_resumed = 0;                 ///< moved by an earlier run
  std::atomic<std::uint64_t> items_known = 0, items_done = 0, items_failed = 0;
  std::atomic<bool> all_known = false;  ///< no more items will be added
};

/// Runs jobs on up to `workers` threads through a bounded queue. A thread starts only when there is work for it, and
/// the owner's thread helps in Finish(): a batch of one job has no threads of its own. Jobs get a Call with the batch's
/// stop token. Only the owner's thread may call the methods. Reports come one at a time, from any thread.
class Batch {
 public:
  struct Outcome {
    const std::string& source;
    const std::string& destination;
    std::uint64_t size;
    const Status& status;
    bool needed = true;  ///< false: the destination was up to date
  };
  /// Does the work of one item. Returns false if the destination was up to date.
  using Job = std::move_only_function<Result<bool>(const object::Call&)>;
  /// Does the work of a group of items. Returns one status per item, in their order.
  using GroupJob = std::move_only_function<std::vector<Status>(const object::Call&)>;

  /// Calls `report` for every item that has ended, and with kCancelled for every item that `stop` kept from starting.
  Batch(int workers, std::stop_token stop, std::function<void(const Outcome&)> report);
  ~Batch();

  /// Adds an item. Blocks while the queue is full. Does nothing after a stop.
  void Add(std::string source, std::string destination, std::uint64_t size, Job job);
  /// Adds items that one job does together, such as the deletion of a page of keys. Reports the names as sources, or as
  /// destinations if `as_destination`. Blocks while the queue is full. Does nothing after a stop.
  void AddMany(std::vector<std::string> names, bool as_destination, GroupJob job);
  /// Reports an item that failed before it became a job.
  void AddFailure(std::string source, std::string destination, Error error);
  /// Blocks until the jobs so far have ended. Runs jobs on the caller's thread meanwhile. More may be added.
  void Wait() MR_EXCLUDES(ended_mutex_);
  /// Blocks until all jobs have ended. Runs jobs on the caller's thread meanwhile.
  void Finish();
  BatchCounters& counters() { return counters_; }

 private:
  using Work = std::move_only_function<void()>;
  void Submit(Work work);
  void Run(Work& work) MR_EXCLUDES(ended_mutex_);
  void RunQueued();
  void Report(const Outcome& outcome) MR_EXCLUDES(report_mutex_);

  // Constant after construction.
  const std::stop_token stop_;
  const std::function<void(const Outcome&)> report_;
  const int workers_;
  // The owner's thread only.
  std::uint64_t submitted_ = 0;
  int started_ = 0;  ///< threads

  Mutex report_mutex_;  ///< held during each call of report_
  BatchCounters counters_;
  std::atomic<std::uint64_t> ended_ = 0;
  Mutex ended_mutex_;  ///< with one_ended_, for Wait()
  CondVar one_ended_;
  Channel<Work> queue_;
  TaskScope threads_;
};

}  // namespace millrace::transfer
