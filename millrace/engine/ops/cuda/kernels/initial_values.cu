#include "millrace/engine/ops/cuda/kernels/kernels.h"

#include <numbers>

#include "millrace/base/hash/mix.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;

/// Uniform in (0, 1].
__device__ double UnitInterval(std::uint64_t word) { return (static_cast<double>(word >> 11) + 1) * 0x1p-53; }

__global__ void Normal(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t pair = first / 2 + blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
       pair < (first + count + 1) / 2; pair += stride) {
    const auto i = 2 * static_cast<std::uint64_t>(pair);
    const double radius = stddev * sqrt(-2 * log(UnitInterval(MixBits(key + i))));
    const double angle = 2 * std::numbers::pi * UnitInterval(MixBits(key + i + 1));
    const std::int64_t at = 2 * pair - first;
    if (at >= 0) into[at] = static_cast<float>(radius * cos(angle));
    if (at + 1 < count) into[at + 1] = static_cast<float>(radius * sin(angle));
  }
}

__global__ void Uniform(std::uint64_t key, double bound, std::int64_t first, float* into, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count; i += stride) {
    const double unit = UnitInterval(MixBits(key + static_cast<std::uint64_t>(first + i)));
    into[i] = static_cast<float>(bound * (2 * unit - 1));
  }
}

constexpr std::int64_t kMaxBlocks = 16'384;

}  // namespace

void FillNormal(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream) {
  if (count == 0) return;
  Start(Normal, BlocksFor(count / 2 + 1, kThreads, kMaxBlocks), kThreads, stream, key, stddev, first, into, count);
}

void FillUniform(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream) {
  if (count == 0) return;
  Start(Uniform, BlocksFor(count, kThreads, kMaxBlocks), kThreads, stream, key, stddev * std::numbers::sqrt3, first,
        into, count);
}

}  // namespace millrace::engine::cuda
