#include "millrace/engine/ops/cuda/tensors/optimizer.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "millrace/engine/ops/cuda/tensors/tensors.h"

namespace millrace::engine::ops::cuda {
namespace {

/// The table of a step's runs on the GPU.
struct RunTable {
  at::Tensor memory;  ///< bytes
  kernels::OptimizerRuns runs;
};

/// Sets the runs' blocks and copies them to the GPU.
RunTable TableOf(OptimizerRuns& runs, const at::Tensor& like) {
  const auto count = static_cast<std::int64_t>(runs.runs.size());
  RunTable table;
  table.runs.count = count;
  table.runs.bf16_moments = runs.bf16_moments;
  table.runs.blocks = kernels::SetBlocks(ElementOf(like), runs.bf16_moments, runs.runs.data(), count);
  // Pinned memory that is freed stays as it is until the copy is made.
  const at::Tensor bytes = at::empty({count * static_cast<std::int64_t>(sizeof(kernels::OptimizerRun))},
                                     at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  if (count > 0) std::memcpy(bytes.data_ptr(), runs.runs.data(), static_cast<std::size_t>(bytes.numel()));
  table.memory = bytes.to(like.device(), /*non_blocking=*/true);
  table.runs.runs = MemoryOf<kernels::OptimizerRun>(table.memory);
  return table;
}

}  // namespace

at::Tensor HostZeros(std::int64_t count, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
  if (bytes == 0) return at::zeros({count}, options);
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  TORCH_CHECK(error == cudaSuccess, "out of memory: the host cannot pin ", bytes, " bytes for the optimizer's state (",
              cudaGetErrorString(error), ")");
  std::memset(memory, 0, bytes);
  return at::from_blob(memory, {count}, [](void* freed) { (void)cudaFreeHost(freed); }, options);
}

void Adamw(OptimizerRuns runs, const cpu::AdamwStep& step, const at::Tensor& like) {
  const c10::cuda::CUDAGuard guard(like.device());
  const RunTable table = TableOf(runs, like);
  kernels::Adamw(ElementOf(like), table.runs, step, StreamOf(like));
}

void Sgd(OptimizerRuns runs, const cpu::SgdStep& step, const at::Tensor& like) {
  const c10::cuda::CUDAGuard guard(like.device());
  const RunTable table = TableOf(runs, like);
  kernels::Sgd(ElementOf(like), table.runs, step, StreamOf(like));
}

std::vector<cpu::LambSquares> LambDirection(OptimizerRuns runs, const cpu::LambStep& step, const at::Tensor& like) {
  const c10::cuda::CUDAGuard guard(like.device());
  const RunTable table = TableOf(runs, like);
  static_assert(sizeof(cpu::LambSquares) == 2 * sizeof(double));
  const at::Tensor squares = NewLike(like, {table.runs.blocks, 2}, at::kDouble);
  kernels::LambDirection(ElementOf(like), table.runs, step, MemoryOf<cpu::LambSquares>(squares), StreamOf(like));
  const at::Tensor there = squares.cpu();
  const auto* each = static_cast<const cpu::LambSquares*>(there.data_ptr());
  const std::vector<kernels::OptimizerRun>& all = runs.runs;
  std::vector<cpu::LambSquares> sums(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t end = i + 1 < all.size() ? all[i + 1].first_block : table.runs.blocks;
    for (std::int64_t block = all[i].first_block; block < end; ++block) {
      sums[i].weight += each[block].weight;
      sums[i].update += each[block].update;
    }
  }
  return sums;
}

void LambApply(OptimizerRuns runs, const at::Tensor& like) {
  const c10::cuda::CUDAGuard guard(like.device());
  const RunTable table = TableOf(runs, like);
  kernels::LambApply(ElementOf(like), table.runs, StreamOf(like));
}

at::Tensor SumOfSquares(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor sums = NewLike(x, {kernels::SumOfSquaresBlocks(x.numel())}, at::kDouble);
  kernels::SumOfSquares(MemoryOf<float>(x), x.numel(), MemoryOf<double>(sums), StreamOf(x));
  return sums.sum();
}

}  // namespace millrace::engine::ops::cuda
