#include "millrace/collectives/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace millrace::collectives {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

/// Tells the processor that this is a spinning loop: its other hardware thread gets the execution units.
void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void SharedCounter::Raise(std::uint32_t value) {
  // Sequential consistency: either this thread sees the sleeper, or the sleeper sees the new value.
  value_.store(value, std::memory_order_seq_cst);
  Wake();
}

bool SharedCounter::AwaitFor(std::uint32_t target, Duration spin, Duration most) {
  if (spin > Duration::zero()) {
    const TimePoint end = SystemClock().Now() + spin;
    do {
      if (Reached(target)) return true;
      PauseCpu();
    } while (SystemClock().Now() < end);
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - target) < 0) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (most - seconds).count()};
    // Every outcome leads to the same next step, a look at the counter.
    (void)::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return Reached(target);
}

void SharedCounter::Wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  (void)::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace millrace::collectives
