// Sums of columns. Blocks sum slices of rows, and a second pass adds the slices, so that the order is fixed.
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kRows = 8;                 // of a block's threads
constexpr std::int64_t kSliceRows = 64;  // a slice has at least: less would cost more in the second pass
constexpr std::int64_t kSlices = 256;

/// Sums rows slice, slice + slices, … of tile blockIdx.x: 32 vectors of columns. The last vector of a row may go beyond
/// it: an aligned one has at least one element of the row, so it lies in memory of the GPU.
template <class T, int N>
__global__ void __launch_bounds__(kWarp* kRows)
    SumSlices(const T* x, std::int64_t stride, float* out, std::int64_t rows, std::int64_t columns, bool adds) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x) * N;
  float sums[N];
#pragma unroll
  for (int k = 0; k < N; ++k) sums[k] = 0;
  if (at < columns) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kRows;
#pragma unroll 4
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kRows + threadIdx.y; row < rows; row += step) {
      const Pack<T, N> value = Load<N>(x + row * stride + at);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += ToFloat(value.values[k]);
    }
  }
  __shared__ float all[kRows][N][kWarp];
#pragma unroll
  for (int k = 0; k < N; ++k) all[threadIdx.y][k][threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.y > 0 || at >= columns) return;
  float* const into = out + blockIdx.y * columns + at;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (at + k >= columns) break;
    float sum = 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) sum += all[row][k][threadIdx.x];
    into[k] = adds ? into[k] + sum : sum;
  }
}

}  // namespace

std::int64_t ColumnSumSlices(std::int64_t rows, std::int64_t columns) {
  // The number of slices depends on the sizes alone, so that the sum is the same on every GPU.
  constexpr std::int64_t kBlocks = 1024;
  const std::int64_t tiles = std::max<std::int64_t>(1, (columns + 255) / 256);
  return std::clamp<std::int64_t>(std::min(kBlocks / tiles, rows / kSliceRows), 1, kSlices);
}

void ColumnSum(Element element, const ColumnSumArgs& args, Stream stream) {
  if (args.columns == 0) return;
  const std::int64_t slices = ColumnSumSlices(args.rows, args.columns);
  DispatchPacks(element, args.stride, {args.x}, [&]<class T, int N>(T, Constant<N>) {
    const dim3 grid(BlocksFor(args.columns, kWarp * N), static_cast<unsigned>(slices));
    const bool one = slices == 1;
    Start(SumSlices<T, N>, grid, dim3(kWarp, kRows), stream, static_cast<const T*>(args.x), args.stride,
          one ? args.out : args.scratch, args.rows, args.columns, one && args.adds);
    if (one) return;
    Start(SumSlices<float, 1>, BlocksFor(args.columns, kWarp), dim3(kWarp, kRows), stream, args.scratch, args.columns,
          args.out, slices, args.columns, args.adds);
  });
}

}  // namespace millrace::engine::cuda
