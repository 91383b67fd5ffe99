// A limit on the rate of uploads.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::checkpoint {

/// Limits the rate of a stream of bytes. The first bytes pass at once, later ones when the rate allows. One thread.
class Pacer {
 public:
  /// `bytes_per_second` 0: no limit. The clock must outlive it.
  Pacer(Clock& clock, std::uint64_t bytes_per_second) : clock_(clock), rate_(bytes_per_second) {}
  /// Blocks until `bytes` more may be sent.
  void Pass(std::uint64_t bytes);

 private:
  Clock& clock_;
  const std::uint64_t rate_;
  TimePoint free_at_{};  ///< when the next bytes may be sent
};

}  // namespace millrace::checkpoint
