// The policy of hedged requests: decides when a request is sent a second time. Source: Dean and Barroso, "The Tail at
// Scale" (2013).
#pragma once

#include <optional>

#include "millrace/base/clock.h"

namespace millrace::http {

/// Learns how long responses take to begin and decides which requests are sent a second time. A state machine without
/// a clock. Not thread-safe.
class HedgePolicy {
 public:
  /// Allows a second try for `share` of the requests, and for a few requests in a row.
  explicit HedgePolicy(double share) : share_(share) {}

  /// Records the start of a request that may be hedged. Returns how long to wait for its response before the second
  /// try; no value while there are too few samples.
  std::optional<Duration> Began();
  /// Records that the response of such a request began after `after`.
  void Answered(Duration after);
  /// Takes one second try. False if none is left.
  bool Spend();

 private:
  const double share_;
  double mean_ = 0, deviation_ = 0;  ///< seconds, smoothed as TCP smooths round trips (RFC 6298)
  int samples_ = 0;
  double tokens_ = 0;  ///< second tries left
};

}  // namespace millrace::http
