// Settings of a process that computes.
#pragma once

namespace millrace::engine {

/// To be called once by main, before the first tensor: the number of threads of ops and BLAS, and an allocator that
/// keeps the large blocks every step frees and asks for again, instead of handing them back to the system page by page.
void ConfigureRuntime(int threads);

}  // namespace millrace::engine
