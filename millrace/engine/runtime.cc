#include "millrace/engine/runtime.h"

#include <ATen/Parallel.h>
#include <malloc.h>

namespace millrace::engine {

void ConfigureRuntime(int threads) {
  if (threads > 0) at::set_num_threads(threads);
  mallopt(M_MMAP_MAX, 0);  // else blocks above 32 MiB are mapped and unmapped each time, and every page faults anew
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace millrace::engine
