// How many requests an endpoint gets at once.
#pragma once

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

}  // namespace millrace::object::s3
