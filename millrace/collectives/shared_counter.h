// A counter in memory that processes share, and the wait for it.
#pragma once

#include <atomic>
#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::collectives {

/// A counter that one thread raises and others wait for, in one or several processes. It lies in shared memory: zero
/// bytes are a counter of 0, and no destructor needs to run. Counts modulo 2^32: values that are compared are less than
/// 2^31 apart. Raising the counter publishes all earlier writes of that thread to those who see the new value.
class alignas(64) SharedCounter {  // a cache line each: waiting for one does not disturb another
 public:
  bool Reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value_.load(std::memory_order_acquire) - target) >= 0;
  }
  /// Sets the counter and wakes those who wait. A system call only if somebody sleeps.
  void Raise(std::uint32_t value);
  /// Returns Reached(target). Polls for `spin`, then sleeps until the counter changes, Wake() is called or `most`
  /// has passed. It may return false early: call it in a loop.
  bool AwaitFor(std::uint32_t target, Duration spin, Duration most);
  /// Ends the sleep of those who wait, although the counter has not changed. One who is about to sleep may miss it.
  void Wake();

 private:
  std::atomic<std::uint32_t> value_ = 0;
  std::atomic<std::uint32_t> sleepers_ = 0;
};

}  // namespace millrace::collectives
