// Products of few rows with a weight's transpose: what generation computes. Each element of the weight is read once,
// so such a product is as fast as memory, if enough loads are under way at once.
#include "millrace/engine/ops/cuda/kernels/device.cuh"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

/// Loads a vector of 16 bytes that is not read again.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> LoadOnce(const T* from) {
  static_assert(sizeof(Pack<T, N>) == sizeof(uint4));
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  return reinterpret_cast<const Pack<T, N>&>(words);
}

/// Returns how many blocks of threads a multiprocessor has at once, at least. A product is faster the more loads are
/// under way. The kernel of one row needs few registers, so that the most blocks fit that a multiprocessor may have.
constexpr int BlocksAtOnce(int rows) { return rows == 1 ? 16 : 1; }

/// A block makes one output of all rows at a time, and takes outputs in turns with the other blocks: what all of them
/// read lies side by side. A thread loads its next vector of the weight before it multiplies this one.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(kRows)) FewRowsKernel(FewRowsArgs a) {
  constexpr int N = kPack<T>, kStep = kThreads * N;
  __shared__ float of_warps[2][kWarps][kRows];
  LetNextStart();
  const int thread = static_cast<int>(threadIdx.x), inputs = static_cast<int>(a.inputs);
  const int outputs = static_cast<int>(a.outputs), blocks = static_cast<int>(gridDim.x);
  int output = static_cast<int>(blockIdx.x);  // there are no more blocks than outputs
  int at = thread * N;
  const auto load = [&](int of_output, int from) {
    Pack<T, N> vector{};
    if (from < inputs) vector = LoadOnce<N>(static_cast<const T*>(a.weight) + of_output * a.inputs + from);
    return vector;
  };
  Pack<T, N> now = load(output, at);  // the weight is none of what earlier kernels write
  WaitForEarlier();
  float sums[kRows] = {};
  int turn = 0;
  while (true) {
    const bool ends = at - thread * N + kStep >= inputs;
    const int next_output = ends ? output + blocks : output, next_at = ends ? thread * N : at + kStep;
    Pack<T, N> later;
    if (next_output < outputs) later = load(next_output, next_at);
    if (at < inputs) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const Pack<T, N> values = Load<N>(static_cast<const T*>(a.x) + row * a.x_stride + at);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[row] += ToFloat(values.values[k]) * ToFloat(now.values[k]);
      }
    }
    if (ends) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float sum = OverLanes(sums[row], kWarp, Sum());
        if (thread % kWarp == 0) of_warps[turn][thread / kWarp][row] = sum;
        sums[row] = 0;
      }
      __syncthreads();  // before these sums are written again, there is another one
      if (thread < kRows) {
        float sum = a.bias != nullptr ? ToFloat(static_cast<const T*>(a.bias)[output]) : 0.0F;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[turn][warp][thread];
        static_cast<T*>(a.out)[thread * a.outputs + output] = FromFloat<T>(sum);
      }
      turn ^= 1;
      if (next_output >= outputs) return;
    }
    output = next_output;
    at = next_at;
    now = later;
  }
}

template <class T, int kRows>
void StartFewRows(const FewRowsArgs& args, Stream stream) {
  int at_once = 0;
  Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, FewRowsKernel<T, kRows>, kThreads, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const std::int64_t most = std::int64_t{std::max(at_once, 1)} * Multiprocessors();
  Launch(FewRowsKernel<T, kRows>, BlocksFor(args.outputs, 1, most), kThreads, stream, args);
}

template <class Work>
void DispatchRows(std::int64_t rows, Work&& work) {
  switch (rows) {
    case 1:
      return work(Constant<1>{});
    case 2:
      return work(Constant<2>{});
    case 3:
      return work(Constant<3>{});
    default:
      return work(Constant<4>{});
  }
}

}  // namespace

bool FitsFewRows(Element element, const FewRowsArgs& args) {
  bool fits = false;
  DispatchElement(element, [&]<class T>(T) {
    fits = FitsPacks<T>(args.inputs, {args.x, args.weight}) && args.x_stride % kPack<T> == 0;
  });
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  return fits && args.rows >= 1 && args.rows <= kMaxFewRows && args.inputs <= kMax && args.outputs <= kMax;
}

void MultiplyFewRows(Element element, const FewRowsArgs& args, Stream stream) {
  if (args.outputs == 0) return;
  DispatchElement(element, [&]<class T>(T) {
    DispatchRows(args.rows, [&]<int kRows>(Constant<kRows>) { StartFewRows<T, kRows>(args, stream); });
  });
}

}  // namespace millrace::engine::cuda
