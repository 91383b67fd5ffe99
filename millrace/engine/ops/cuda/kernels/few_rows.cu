// Products of few rows with a weight's transpose: what generation computes. Each element of the weight is read once,
// so such a product is as fast as memory, if enough loads are under way at once.
#include "millrace/engine/ops/cuda/kernels/device.cuh"
#include "millrace/engine/ops/cuda/kernels/few_rows.h"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
/// Vectors of the weight that a thread loads at once. Fewer would not fill the time until they come: a multiprocessor
/// needs some 30 KiB under way.
constexpr int kUnroll = 8;

/// Loads a vector of 16 bytes that is not read again.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> LoadOnce(const T* from) {
  static_assert(sizeof(Pack<T, N>) == sizeof(uint4));
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  return reinterpret_cast<const Pack<T, N>&>(words);
}

/// A warp makes one output of all rows. Lanes take vectors of the inputs in turns.
template <class T, int N, int kRows>
__global__ void __launch_bounds__(kThreads) FewRowsKernel(FewRowsArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (output >= a.outputs) return;
  const T* const x = static_cast<const T*>(a.x);
  const T* const weight = static_cast<const T*>(a.weight) + output * a.inputs;
  float sums[kRows] = {};
  constexpr int kStep = kWarp * N;
  for (std::int64_t begin = lane * N; begin < a.inputs; begin += kStep * kUnroll) {
    Pack<T, N> w[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * kStep < a.inputs) w[u] = LoadOnce<N>(weight + begin + u * kStep);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * kStep >= a.inputs) continue;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const Pack<T, N> values = Load<N>(x + row * a.x_stride + begin + u * kStep);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[row] += ToFloat(values.values[k]) * ToFloat(w[u].values[k]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float sum = OverLanes(sums[row], kWarp, Sum());
    if (lane != 0) continue;
    const float bias = a.bias != nullptr ? ToFloat(static_cast<const T*>(a.bias)[output]) : 0.0F;
    static_cast<T*>(a.out)[row * a.outputs + output] = FromFloat<T>(sum + bias);
  }
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
  return fits && args.rows >= 1 && args.rows <= kMostFewRows;
}

void MultiplyFewRows(Element element, const FewRowsArgs& args, Stream stream) {
  if (args.outputs == 0) return;
  DispatchElement(element, [&]<class T>(T) {
    DispatchRows(args.rows, [&]<int kRows>(Constant<kRows>) {
      FewRowsKernel<T, kPack<T>, kRows><<<BlocksFor(args.outputs, kWarps), kThreads, 0, stream>>>(args);
    });
  });
  CheckLaunch("MultiplyFewRows");
}

}  // namespace millrace::engine::cuda
