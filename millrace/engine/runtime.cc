#include "millrace/engine/runtime.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>

namespace millrace::engine {

void ConfigureRuntime(int threads) {
  if (threads > 0) at::set_num_threads(threads);
  // Without this, malloc maps and unmaps blocks above 32 MiB (mallopt(3)) each time, and every page faults again.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // keep up to 1 GiB of free memory at the top of the heap
  mallopt(M_TOP_PAD, 64 << 20);        // grow the heap by 64 MiB at least, so that growing is rare
}

void LimitThreads(double flops) {
  // A thread computes this number of operations in 0.1 to 0.2 ms. The number is a guess: it lies between
  // the models that were measured (docs/benchmarks/training.md, "Beside busy processes").
  constexpr double kLeast = 16e6;
  const int busy = static_cast<int>(std::clamp(flops / kLeast, 1.0, static_cast<double>(at::get_num_threads())));
  at::set_num_threads(busy);
}

}  // namespace millrace::engine
