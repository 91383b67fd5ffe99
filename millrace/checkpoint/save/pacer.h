// A limit on the rate of uploads.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::checkpoint {

/// Holds a stream of bytes below a rate: the first go at once, those that follow when the rate allows. One thread.
class Pacer {
 public:
  /// `bytes_per_second` 0: no limit. The clock must outlive it.
  Pacer(Clock& clock, std::uint64_t bytes_per_second) : clock_(clock), rate_(bytes_per_second) {}
  /// Blocks until `bytes` more may go.
  void Pass(std::uint64_t bytes);

 private:
  Clock& clock_;
  const std::uint64_t rate_;
  TimePoint free_at_{};  ///< when all that went before has had its time
};

}  // namespace millrace::checkpoint
