// Settings of a process that computes.
#pragma once

namespace millrace::engine {

/// Sets the number of threads of ops and BLAS (0: the library's default). Makes the allocator keep large blocks in the
/// process: every step frees and allocates the same ones, and pages fresh from the system would fault one by one.
/// REQUIRES: main() calls it once, before the first tensor.
void ConfigureRuntime(int threads);

/// Lowers the number of threads to those that matrix products of `flops` floating-point operations keep busy. Threads
/// wait for each other at the end of each product. Where one of them has lost its core to another process, that takes
/// milliseconds, whatever the product takes.
void LimitThreads(double flops);

}  // namespace millrace::engine
