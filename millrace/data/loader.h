// Feeds one rank of a run with batches, prefetched on threads of its own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stop_token>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/data/batch/batch.h"
#include "millrace/data/batch/load_stage.h"
#include "millrace/data/dataset.h"
#include "millrace/data/loader_state.h"
#include "millrace/data/options/loader_options.h"

namespace millrace::data {

/// A rank's batches in their order (data/README.md). Neighbouring rows share documents, so a rank takes
/// contiguous rows, and few documents are tokenized on two ranks. All ranks see the same number of batches. All memory
/// is one reservation of the budget. The state of the last whole batch is exact.
///
/// Threads take the numbers of micro-batches in order, fill them in any order, and leave them in a ring for the
/// consumer. One thread consumes; any thread may call the const methods.
class Loader final {
 public:
  /// The batches to make, and the number of threads.
  using Options = LoaderOptions;
  /// The work that the loader has done so far.
  struct Stats {
    Duration waited{0};  ///< time that the consumer waited
    /// `waited`, divided by what the thread that made the awaited batch did meanwhile. By LoadStage.
    std::array<Duration, kLoadStages> waited_on{};
    std::uint64_t batches = 0;  ///< micro-batches that Next returned
    std::uint64_t tokens = 0;   ///< inputs of these, padding counted
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
  Stats stats() const;                      ///< since Start
  std::uint64_t batches_per_epoch() const;  ///< global batches

 private:
  struct Rep;
  explicit Loader(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
