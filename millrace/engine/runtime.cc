#include "millrace/engine/runtime.h"

#include <ATen/Parallel.h>
#include <malloc.h>

namespace millrace::engine {

void ConfigureRuntime(int threads) {
  if (threads > 0) at::set_num_threads(threads);
  // Without this, malloc maps and unmaps blocks above 32 MiB (mallopt(3)) each time, and every page faults again.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // keep up to 1 GiB of free memory at the top of the heap
  mallopt(M_TOP_PAD, 64 << 20);        // grow the heap by 64 MiB at least, so that growing is rare
}

}  // namespace millrace::engine
