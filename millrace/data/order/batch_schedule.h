// The schedule of a rank's micro-batches: the samples of the global order that each one has. Arithmetic only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/data/options/loader_options.h"

namespace millrace::data {

/// A sample of an epoch's global order.
struct SamplePosition {
  std::uint64_t epoch = 0, sample = 0;
};

/// Global batch b of an epoch is samples [b·G, (b+1)·G). Rank r of n takes the r-th n-th of it, contiguous, micro_batch
/// rows at a time. A partial batch at the end of an epoch is dropped. Immutable; any thread may call any method.
class BatchSchedule {
 public:
  /// REQUIRES: `options` are valid, and samples_per_epoch >= options.global_batch.
  BatchSchedule(std::uint64_t samples_per_epoch, const LoaderOptions& options, SamplePosition start)
      : batch_(options.global_batch),
        micro_(options.micro_batch),
        share_(batch_ / options.ranks),
        rank_(options.rank),
        stride_(options.stride),
        phase_(options.phase),
        start_(start),
        first_batches_((samples_per_epoch - std::min(samples_per_epoch, start.sample)) / batch_),
        epoch_batches_(samples_per_epoch / batch_) {}

  std::uint64_t micro_batches() const { return share_ / micro_; }  ///< of one rank in a global batch
  std::uint64_t epoch_batches() const { return epoch_batches_; }   ///< global batches

  /// Returns the first sample of the loader's n-th global batch since the start.
  SamplePosition GlobalBatch(std::uint64_t n) const {
    n = n * stride_ + phase_;
    if (n < first_batches_) return {start_.epoch, start_.sample + n * batch_};
    n -= first_batches_;
    return {start_.epoch + 1 + n / epoch_batches_, n % epoch_batches_ * batch_};
  }
  /// Returns the sample of the first row of this rank's n-th micro-batch since the start.
  SamplePosition MicroBatch(std::uint64_t n) const {
    SamplePosition position = GlobalBatch(n / micro_batches());
    position.sample += rank_ * share_ + n % micro_batches() * micro_;
    return position;
  }

 private:
  // Constant after construction.
  std::uint64_t batch_, micro_, share_, rank_, stride_, phase_;
  SamplePosition start_;
  std::uint64_t first_batches_;  ///< whole global batches from the start to the end of its epoch
  std::uint64_t epoch_batches_;
};

}  // namespace millrace::data
