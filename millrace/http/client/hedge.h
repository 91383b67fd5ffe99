// When a request is worth sending a second time. Source: Dean and Barroso, "The Tail at Scale" (2013).
#pragma once

#include <optional>

#include "millrace/base/clock.h"

namespace millrace::http {

/// Learns how long answers take to begin and hands out a bounded number of second tries. A pure state machine; one
/// owner.
class HedgePolicy {
 public:
  /// At most `share` of the requests, and a few in a row, are sent again.
  explicit HedgePolicy(double share) : share_(share) {}

  /// A request that may be hedged begins. How long to wait for its answer; nothing while too little is known.
  std::optional<Duration> Began();
  /// Its answer began after so long.
  void Answered(Duration after);
  /// May this one, which has waited that long, be sent again?
  bool Spend();

 private:
  const double share_;
  double mean_ = 0, deviation_ = 0;  ///< seconds, smoothed as TCP smooths round trips
  int samples_ = 0;
  double tokens_ = 0;
};

}  // namespace millrace::http
