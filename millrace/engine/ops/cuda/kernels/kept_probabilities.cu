#include "millrace/engine/ops/cuda/kernels/kernels.h"

#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread draws four neighbouring elements of a row: those that share a counter.
__global__ void Kept(KeptProbabilities of, float* out) {
  const std::int64_t quads = (of.length + 3) / 4, all = of.heads * of.length * quads;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t row = i / quads, quad = i % quads, head = row / of.length, query = row % of.length;
    const cpu::PhiloxWords random =
        cpu::Philox(of.key, static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(of.first_position + query),
                    of.sample, static_cast<std::uint32_t>(of.first_head + head));
    for (std::int64_t j = 4 * quad; j < min(4 * quad + 4, of.length); ++j) {
      out[row * of.length + j] = random.words[j - 4 * quad] < of.threshold ? 0 : of.scale;
    }
  }
}

}  // namespace

void FillKeptProbabilities(const KeptProbabilities& of, float* out, Stream stream) {
  const std::int64_t threads = of.heads * of.length * ((of.length + 3) / 4);
  if (threads == 0) return;
  constexpr std::int64_t kMaxBlocks = 132 * 16;
  Start(Kept, BlocksFor(threads, kThreads, kMaxBlocks), kThreads, stream, of, out);
}

}  // namespace millrace::engine::cuda
