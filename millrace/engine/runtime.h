// Settings of a process that computes.
#pragma once

namespace millrace::engine {

/// Sets the number of threads of ops and BLAS (0: the library's default). Makes the allocator keep large blocks in the
/// process: every step frees and allocates the same ones, and pages fresh from the system would fault one by one.
/// REQUIRES: main() calls it once, before the first tensor.
void ConfigureRuntime(int threads);

}  // namespace millrace::engine
