// The gradient of a table look-up, without atomic additions: ids are sorted, and equal ones are a run. A block sums
// the runs of a window of sorted ids. Runs that lie within the window go to the table at once. Of those that cross a
// border, the window's part goes to scratch memory, and a second kernel adds up the parts.
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr std::int64_t kWindow = 32;  // sorted ids
constexpr int kThreads = 128;

/// The rows of scratch memory of a window: the sum of the run that crosses its begin, and of the one that crosses its
/// end only.
enum Part { kFirst, kLast };
__device__ __forceinline__ float* ScratchOf(const AddRowsArgs& a, std::int64_t window, Part part) {
  return a.scratch + (2 * window + part) * a.columns;
}

template <int N>
__device__ __forceinline__ void AddTo(float* into, const float (&sums)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) into[k] += sums[k];
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) SumWindows(AddRowsArgs a) {
  const std::int64_t window = blockIdx.x, begin = window * kWindow;
  const std::int64_t end = begin + kWindow < a.count ? begin + kWindow : a.count;
  const auto* dout = static_cast<const T*>(a.dout);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kThreads * N;
  for (std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N; at < a.columns;
       at += step) {
    for (std::int64_t from = begin; from < end;) {
      const std::int64_t id = a.ids[from];
      float sums[N];
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] = 0;
      std::int64_t i = from;
      for (; i < end && a.ids[i] == id; ++i) {
        const Pack<T, N> value = Load<N>(dout + a.order[i] * a.columns + at);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += ToFloat(value.values[k]);
      }
      const bool crosses_begin = from == begin && begin > 0 && a.ids[begin - 1] == id;
      const bool crosses_end = i == end && end < a.count && a.ids[end] == id;
      if (crosses_begin || crosses_end) {
        float* const into = ScratchOf(a, window, crosses_begin ? kFirst : kLast) + at;
#pragma unroll
        for (int k = 0; k < N; ++k) into[k] = sums[k];
      } else {
        AddTo(a.into + id * a.columns + at, sums);
      }
      from = i;
    }
  }
}

/// Adds up the runs that cross the end of a window and begin in it.
__global__ void __launch_bounds__(kThreads) JoinWindows(AddRowsArgs a) {
  const std::int64_t window = blockIdx.x, begin = window * kWindow, end = begin + kWindow;
  if (end >= a.count || a.ids[end] != a.ids[end - 1]) return;
  const std::int64_t id = a.ids[end - 1];
  if (begin > 0 && a.ids[begin - 1] == id) return;  // began earlier
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x; at < a.columns; at += step) {
    float sum[1] = {ScratchOf(a, window, kLast)[at]};
    for (std::int64_t next = window + 1; next * kWindow < a.count && a.ids[next * kWindow] == id; ++next) {
      sum[0] += ScratchOf(a, next, kFirst)[at];
    }
    AddTo(a.into + id * a.columns + at, sum);
  }
}

}  // namespace

std::int64_t AddRowsScratchRows(std::int64_t count) { return 2 * ((count + kWindow - 1) / kWindow); }

void AddRows(Element element, const AddRowsArgs& args, Stream stream) {
  if (args.count == 0 || args.columns == 0) return;
  const unsigned windows = BlocksFor(args.count, kWindow);
  constexpr std::int64_t kMaxY = 65'535;
  DispatchPacks(element, args.columns, {args.dout}, [&]<class T, int N>(T, Constant<N>) {
    Start(SumWindows<T, N>, dim3(windows, BlocksFor(args.columns, kThreads * N, kMaxY)), kThreads, stream, args);
  });
  Start(JoinWindows, dim3(windows, BlocksFor(args.columns, kThreads, kMaxY)), kThreads, stream, args);
}

}  // namespace millrace::engine::cuda
