// Runs kernels of GPUs on the CPU, for tests.
#pragma once

namespace millrace::engine::cuda::emulator {

/// The order of execution: of the warps that can go on until they wait for others, of the threads of a warp in between,
/// and of the blocks of a kernel.
enum class Order { kForward, kBackward, kShuffled };

/// The GPU that kernels see from now on.
struct Gpu {
  Order order = Order::kForward;
  int multiprocessors = 4;
  int compute_capability = 9;  ///< its first digit
};
void Use(const Gpu& gpu);

}  // namespace millrace::engine::cuda::emulator
