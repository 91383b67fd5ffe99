// The updates of optimizers for parameters on a GPU. Each is one or two passes over the memory of all of them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::ops::cuda {

/// The runs that a step updates. A run is consecutive elements under the same rules. A step of a model has hundreds of
/// runs, so they hold addresses and not tensors. SetBlocks() is called for them here.
struct OptimizerRuns {
  std::vector<engine::cuda::OptimizerRun> runs;
  bool bf16_moments = false;
};

/// Returns zeros of the host, [count], which kernels of every GPU reach at the same address over the bus. The memory is
/// pinned, and as large as it must be: the allocator of pinned tensors would round it up to a power of two. Throws
/// c10::Error if the host has too little memory.
at::Tensor HostZeros(std::int64_t count, at::ScalarType type);

/// As cpu::Adamw. lr and decay come from the runs. `like`: one of the weights.
void Adamw(OptimizerRuns runs, const cpu::AdamwStep& step, const at::Tensor& like);
/// As cpu::Sgd; the momentum is moment1. lr and decay come from the runs.
void Sgd(OptimizerRuns runs, const cpu::SgdStep& step, const at::Tensor& like);
/// As cpu::LambDirection. Returns the sums of each run. Waits for the GPU.
std::vector<cpu::LambSquares> LambDirection(OptimizerRuns runs, const cpu::LambStep& step, const at::Tensor& like);
/// As cpu::LambApply. A run's lr is its rate.
void LambApply(OptimizerRuns runs, const at::Tensor& like);

/// Returns the sum of the squares of a dense float32 tensor: a float64 scalar on its device, added in a fixed order.
at::Tensor SumOfSquares(const at::Tensor& x);

}  // namespace millrace::engine::ops::cuda
