// Runs kernels of GPUs on the CPU, for tests.
#pragma once

namespace millrace::engine::cuda::emulator {

/// Which of the warps that can go on does so first, until it waits for others; in which order its threads run in
/// between; and in which order the blocks of a kernel run.
enum class Order { kForward, kBackward, kShuffled };

/// The GPU that kernels see from now on.
struct Gpu {
  Order order = Order::kForward;
  int multiprocessors = 4;
  int compute_capability = 9;  ///< its first digit
};
void Use(const Gpu& gpu);

}  // namespace millrace::engine::cuda::emulator
