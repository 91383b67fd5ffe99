// Limits on the requests that an endpoint gets at the same time.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::object::s3 {

/// Additive increase, multiplicative decrease (AIMD). Each full round of successes raises the limit by one request. A
/// refusal for load ("SlowDown") multiplies it by 0.7. Refusals come in bursts, because requests under way fail
/// together: those within a second count once. A state machine without a clock. Not thread-safe.
class AdaptiveLimit {
 public:
  AdaptiveLimit(int least, int most) : least_(least), most_(most), limit_(most) {}
  int limit() const { return static_cast<int>(limit_); }
  /// Returns whether the limit is at its maximum. Successes change nothing then.
  bool open() const { return limit_ >= most_; }
  void Succeeded();
  void Throttled(TimePoint now);

 private:
  const double least_, most_;
  double limit_;
  TimePoint next_cut_{};
};

/// Finds the number of parallel uploads with the highest rate. A busy server gets slower with each additional upload; a
/// distant one needs many. As in the startup phase of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control",
/// ACM Queue 14(5), 2016), the limit grows in steps as long as each step raises the rate notably. After that, it tries
/// a step up or down from time to time. It compares rates only of times in which uploads waited because of the limit. A
/// state machine without a clock. Not thread-safe.
class UploadPace {
 public:
  explicit UploadPace(int most);
  int limit() const { return limit_; }
  /// Records that a caller has started an upload, which may have to wait.
  void Began() { ++outstanding_; }
  /// Records the end of an upload.
  void Ended(std::uint64_t bytes, TimePoint now);

 private:
  enum class Mode { kRising, kSteady, kTryingLess };
  void AdjustLimit(double rate);
  void StartRound(TimePoint now);

  const int most_;
  int limit_, outstanding_ = 0;
  Mode mode_ = Mode::kSteady;
  int good_limit_;        ///< the limit to return to if a step does not help
  double good_rate_ = 0;  ///< its rate, bytes per second
  int rounds_to_step_ = 1;
  bool up_next_ = true;

  // The current round. The first uploads that end in it started before the last step and do not count.
  int ended_ = 0;
  std::uint64_t bytes_ = 0;
  TimePoint counted_from_{};
};

}  // namespace millrace::object::s3
