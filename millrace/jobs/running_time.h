// Time in which a process itself ran, for judging the silence of others.
#pragma once

#include <algorithm>
#include <optional>

#include "millrace/base/clock.h"

namespace millrace::jobs {

/// A monotonic time that stands still while its owner does not run: a process that was stopped, or a machine that was
/// frozen. Whoever judges the silence of a peer measures it by this time. After a freeze of both, neither takes the gap
/// for silence of the other.
///
/// One owner, no locking.
class RunningTime {
 public:
  /// `max_tick`: the longest time between two calls of Advance() while the owner runs. Of a longer one, only this
  /// counts.
  explicit RunningTime(Duration max_tick) : max_tick_(max_tick) {}

  /// Returns the running time at `now` of the machine's clock. It is never later than `now`.
  TimePoint Advance(TimePoint now) {
    const Duration passed = now - last_.value_or(now);
    left_out_ += std::max(passed - max_tick_, Duration(0));
    return AdvanceWhole(now);
  }
  /// The same after a call that took its time: all of it counts.
  TimePoint AdvanceWhole(TimePoint now) {
    last_ = now;
    return now - left_out_;
  }
  /// Returns the time that did not count so far. A running time plus this is the machine's time, until the next gap.
  Duration left_out() const { return left_out_; }

 private:
  const Duration max_tick_;
  std::optional<TimePoint> last_;
  Duration left_out_{0};
};

}  // namespace millrace::jobs
