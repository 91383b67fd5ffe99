// Cross-entropy of rows of logits. A block has a row: one pass for the greatest logit and the sum of exponentials, and
// one that writes the gradients over the logits, which then come from the L2 cache for the most part.
#include <cfloat>

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kUnroll = 4;  // vectors that a thread loads at once

/// The greatest of some logits, and the sum of exp(logit - most).
struct Softmax {
  float most = -FLT_MAX, sum = 0;
};

/// Calls work(vector, its first column) for this thread's vectors of the first `end` elements of a row. What lies
/// behind its columns is -infinity.
template <int N, class T, class Work>
__device__ __forceinline__ void ForRow(const T* row, std::int64_t columns, std::int64_t end, Work&& work) {
  const int step = static_cast<int>(blockDim.x) * N;
  for (std::int64_t at = threadIdx.x * N; at < end; at += step * kUnroll) {
    Pack<T, N> values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (at + i * step < end) values[i] = Load<N>(row + at + i * step);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t first = at + i * step;
      if (first + N > columns) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (first + k >= columns) values[i].values[k] = FromFloat<T>(-INFINITY);
        }
      }
      if (first < end) work(values[i], first);
    }
  }
}

/// Returns the softmax of a row to all threads. A NaN in the row makes the sum NaN.
template <int N, class T>
__device__ __forceinline__ Softmax ScanRow(const T* row, std::int64_t columns) {
  Softmax mine;
  ForRow<N>(row, columns, columns, [&](const Pack<T, N>& values, std::int64_t) {
    float most = ToFloat(values.values[0]);
#pragma unroll
    for (int k = 1; k < N; ++k) most = fmaxf(most, ToFloat(values.values[k]));
    if (most > mine.most) {
      mine.sum *= __expf(mine.most - most);
      mine.most = most;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) mine.sum += __expf(ToFloat(values.values[k]) - mine.most);
  });
  const float most = OverRow(mine.most, Most());
  return {most, OverRow(mine.sum * expf(mine.most - most), Sum())};
}

/// Writes exp(logit - shift) · factor - floor over the logits; `less` is taken from the label's.
template <int N, class T>
__device__ __forceinline__ void WriteGradient(T* row, std::int64_t columns, std::int64_t end, std::int64_t label,
                                              float shift, float factor, float floor, float less) {
  ForRow<N>(row, columns, end, [&](Pack<T, N> values, std::int64_t at) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float gradient = __expf(ToFloat(values.values[k]) - shift) * factor - floor;
      if (at + k == label) gradient -= less;
      if (at + k >= columns) gradient = 0;
      values.values[k] = FromFloat<T>(gradient);
    }
    Store(row + at, values);
  });
}

template <int N, class T>
__device__ __forceinline__ void WriteZeros(T* row, std::int64_t columns) {
  Pack<T, N> zeros;
#pragma unroll
  for (int k = 0; k < N; ++k) zeros.values[k] = FromFloat<T>(0);
  for (std::int64_t at = threadIdx.x * N; at < columns; at += blockDim.x * N) Store(row + at, zeros);
}

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    CrossEntropyKernel(CrossEntropyArgs a, bool gradient, double* losses, std::int32_t* correct) {
  const std::int64_t row = blockIdx.x, label = a.labels[row];
  T* const logits = static_cast<T*>(a.logits) + row * a.stride;
  if (label == a.ignored) {
    if (threadIdx.x == 0) {
      losses[row] = 0;
      if (correct != nullptr) correct[row] = 0;
    }
    if (gradient) WriteZeros<N>(logits, a.stride);
    return;
  }
  const bool known = label >= 0 && label < a.columns;
  const float own = known ? ToFloat(logits[label]) : NAN;
  const Softmax softmax = ScanRow<N>(logits, a.columns);
  const double log_sum = log(static_cast<double>(softmax.sum)) + static_cast<double>(softmax.most);
  if (threadIdx.x == 0) {
    losses[row] = log_sum - static_cast<double>(own);
    if (correct != nullptr) correct[row] = own >= softmax.most ? 1 : 0;
  }
  if (!gradient) return;
  __syncthreads();  // all have read the label's logit
  const float factor = 1 + 2 * a.z_loss * static_cast<float>(log_sum);
  WriteGradient<N>(logits, a.columns, a.stride, label, softmax.most, factor / softmax.sum,
                   a.label_smoothing / static_cast<float>(a.vocab), 1 - a.label_smoothing);
}

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) ScanKernel(CrossEntropyArgs a, cpu::PartialSoftmax* partial) {
  const std::int64_t row = blockIdx.x, label = a.labels[row] - a.first_column;
  const T* const logits = static_cast<const T*>(a.logits) + row * a.stride;
  const Softmax softmax = ScanRow<N>(logits, a.columns);
  if (threadIdx.x > 0) return;
  partial[row].most = softmax.most;
  partial[row].sum = softmax.sum;
  partial[row].label = label >= 0 && label < a.columns ? ToFloat(logits[label]) : 0.0F;
}

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) GradientKernel(CrossEntropyArgs a, const float* lse) {
  const std::int64_t row = blockIdx.x;
  T* const logits = static_cast<T*>(a.logits) + row * a.stride;
  if (a.labels[row] == a.ignored) return WriteZeros<N>(logits, a.stride);
  const float factor = 1 + 2 * a.z_loss * lse[row];
  WriteGradient<N>(logits, a.columns, a.stride, a.labels[row] - a.first_column, lse[row], factor,
                   a.label_smoothing / static_cast<float>(a.vocab), 1 - a.label_smoothing);
}

/// Calls work(T{}, Constant<N>{}, threads of a block) if there are rows. Two blocks of 512 threads on a multiprocessor
/// compute in turns. Of long rows there is one block, because those of two would not fit the L2 cache.
template <class Work>
void ForLogits(Element element, const CrossEntropyArgs& args, Work&& work) {
  if (args.rows == 0) return;
  DispatchPacks(element, args.stride, {args.logits}, [&]<class T, int N>(T value, Constant<N> vector) {
    constexpr std::int64_t kLongRow = 128 << 10;  // bytes
    const std::int64_t most = args.columns * static_cast<std::int64_t>(sizeof(T)) > kLongRow ? kMaxThreads : 512;
    work(value, vector, static_cast<unsigned>(std::clamp<std::int64_t>(RoundUp(args.columns / N, kWarp), kWarp, most)));
  });
}

}  // namespace

void CrossEntropy(Element element, const CrossEntropyArgs& args, bool gradient, double* losses, std::int32_t* correct,
                  Stream stream) {
  ForLogits(element, args, [&]<class T, int N>(T, Constant<N>, unsigned threads) {
    Start(CrossEntropyKernel<T, N>, static_cast<unsigned>(args.rows), threads, stream, args, gradient, losses, correct);
  });
}

void CrossEntropyScan(Element element, const CrossEntropyArgs& args, cpu::PartialSoftmax* partial, Stream stream) {
  ForLogits(element, args, [&]<class T, int N>(T, Constant<N>, unsigned threads) {
    Start(ScanKernel<T, N>, static_cast<unsigned>(args.rows), threads, stream, args, partial);
  });
}

void CrossEntropyGradient(Element element, const CrossEntropyArgs& args, const float* lse, Stream stream) {
  ForLogits(element, args, [&]<class T, int N>(T, Constant<N>, unsigned threads) {
    Start(GradientKernel<T, N>, static_cast<unsigned>(args.rows), threads, stream, args, lse);
  });
}

}  // namespace millrace::engine::cuda
