// Measures how long something takes.
#pragma once

#include <chrono>

#include "millrace/base/clock.h"

namespace millrace::train {

/// Measures the time since it was made. Borrows the clock.
class Stopwatch {
 public:
  explicit Stopwatch(Clock& clock) : clock_(clock), start_(clock.Now()) {}
  double Seconds() const { return SecondsOf(clock_.Now() - start_); }

 private:
  Clock& clock_;
  const TimePoint start_;
};

}  // namespace millrace::train
