// What a span costs while nothing is recorded, in processor time of one thread. observation_cost.py runs it.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "millrace/trace/recorder.h"

namespace {

constexpr std::uint64_t kSpans = 20'000'000;
constexpr int kRounds = 7;

double ThreadSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A call that the compiler cannot look into, as the code around a span is.
[[gnu::noinline]] void Work(std::uint64_t& sum, bool has_span) {
  if (has_span) {
    const millrace::trace::Span span("Linear", millrace::trace::Category::kKernel);
    asm volatile("" : "+r"(sum));
  } else {
    asm volatile("" : "+r"(sum));
  }
}

double SecondsOf(bool has_span) {
  std::uint64_t sum = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double begun = ThreadSeconds();
    for (std::uint64_t i = 0; i < kSpans; ++i) Work(sum, has_span);
    least = std::min(least, ThreadSeconds() - begun);
  }
  return least;
}

}  // namespace

int main() {
  const double without = SecondsOf(false), with = SecondsOf(true);
  fmt::print("{{\"span_ns\": {:.3f}}}\n", 1e9 * (with - without) / static_cast<double>(kSpans));
}
