// How many requests an endpoint gets at once.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::object::s3 {

/// Additive increase, multiplicative decrease: each full round of successes allows one request more, a refusal for load
/// ("SlowDown") cuts the number to 7/10. Refusals come in bursts, from requests that were under way together: those
/// within a second count once. A pure state machine; one owner.
class AdaptiveLimit {
 public:
  AdaptiveLimit(int least, int most) : least_(least), most_(most), limit_(most) {}
  int limit() const { return static_cast<int>(limit_); }
  /// Is it as high as it may go? Then successes change nothing.
  bool open() const { return limit_ >= most_; }
  void Succeeded();
  void Throttled(TimePoint now);

 private:
  const double least_, most_;
  double limit_;
  TimePoint next_cut_{};
};

/// How many uploads at once fill the way to the endpoint: a server that is busy gets slower with each one more, one far
/// away needs many. As in the start of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue
/// 14(5), 2016) the number grows by steps as long as each is followed by notably more bytes a second; from then on a
/// step up or down is tried once in a while. Rates are compared only when the limit was what held uploads back. A pure
/// state machine; one owner.
class UploadPace {
 public:
  explicit UploadPace(int most);
  int limit() const { return limit_; }
  /// An upload has been handed over; it may have to wait.
  void Began() { ++outstanding_; }
  void Ended(std::uint64_t bytes, TimePoint now);

 private:
  enum class Mode { kRising, kSteady, kTryingLess };
  void Judge(double rate);
  void StartRound(TimePoint now);

  const int most_;
  int limit_, outstanding_ = 0;
  Mode mode_ = Mode::kSteady;
  int good_limit_;        ///< what to go back to when a step brings nothing
  double good_rate_ = 0;  ///< bytes a second with it
  int rounds_to_step_ = 1;
  bool up_next_ = true;

  // The present round: the first uploads that end in it began before the last step and are passed over.
  int ended_ = 0;
  std::uint64_t bytes_ = 0;
  TimePoint counted_from_{};
};

}  // namespace millrace::object::s3
