// Feeds one rank of a run with batches, prefetched on threads of its own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/batch/batch.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/dataset.h"
#include "millrace/data/loader_state.h"
#include "millrace/data/options/loader_options.h"
#include "millrace/data/order/batch_schedule.h"

namespace millrace::data {

/// A rank's batches in their order (order/batch_schedule.h). Neighbouring rows share documents, so a rank takes
/// contiguous rows, and few documents are tokenized on two ranks. All ranks see the same number of batches. All memory
/// is one reservation of the budget. The state of the last whole batch is exact.
///
/// Threads take the numbers of micro-batches in order, fill them in any order, and leave them in a ring for the
/// consumer. One thread consumes; any thread may call the const methods.
class Loader final {
 public:
  using Options = LoaderOptions;
  struct Stats {
    Duration waited{0};  ///< time that the consumer waited
    /// `waited`, divided by what the thread that made the awaited batch did meanwhile.
    std::array<Duration, kLoadStages> waited_on{};
    std::uint64_t batches = 0, tokens = 0;
  };
  /// Starts at `state`; a default state is the beginning. `budget` must outlive the loader.
  /// Errors: kPreconditionFailed if `state` belongs to other data, naming what differs; kInvalidArgument if the batch
  /// does not divide or an epoch holds no whole batch; kResourceExhausted if the budget cannot hold a shuffle window.
  static Result<std::unique_ptr<Loader>> Start(std::shared_ptr<Dataset> dataset, MemoryBudget& budget, Options options,
                                               LoaderState state, Logger log = {});
  /// Cancels what is under way and joins the threads.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the rank's next micro-batch. Continues with the next epoch at the end of one. Blocks.
  /// Errors: kCancelled if `stop` fires; the next call may succeed. Any other failure is returned by every later call,
  /// too: start a new loader at state().
  Result<Batch> Next(std::stop_token stop = {});
  /// Returns the position after the last whole global batch that Next returned. Another loader can start there. With a
  /// stride: the position of the batch that this loader takes next, as if its phase were 0.
  LoaderState state() const;
  Stats stats() const;
  std::uint64_t batches_per_epoch() const;  ///< global batches

 private:
  struct FilledSlot {
    Result<Batch> batch;
    StageTrace trace;
  };

  Loader(std::shared_ptr<Dataset> dataset, std::unique_ptr<SampleReader> reader, Reservation memory, Options options,
         const LoaderState& start);
  /// The loop of a thread.
  void Fill(std::stop_token stop);
  Result<Batch> Make(std::uint64_t number, StageTrace& trace, const std::stop_token& stop);

  // Constant after construction.
  const std::shared_ptr<Dataset> dataset_;
  const Options options_;
  const Clock& clock_;
  const BatchSchedule schedule_;
  Reservation memory_;
  std::unique_ptr<SampleReader> reader_;

  mutable Mutex mutex_;
  CondVar filled_, freed_;
  // Guarded by mutex_.
  std::vector<std::optional<FilledSlot>> ring_ MR_GUARDED_BY(mutex_);
  std::uint64_t started_ MR_GUARDED_BY(mutex_) = 0;  ///< micro-batches that a thread has begun
  std::uint64_t taken_ MR_GUARDED_BY(mutex_) = 0;    ///< micro-batches that Next has returned
  Stats stats_ MR_GUARDED_BY(mutex_);
  TaskScope threads_;
};

}  // namespace millrace::data
