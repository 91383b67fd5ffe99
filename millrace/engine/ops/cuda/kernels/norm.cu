// Norms of rows. The threads of a row keep it in registers between the sums over it and the result, so that each
// element is read once. A row has up to 32 threads of a warp, or a block of its own. Rows that are too long for
// registers are read again.
#include <type_traits>

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kBlock = 128;  // threads of a block with several rows
constexpr std::int64_t kMaxThreads = 1024;

/// How a kernel divides rows among threads.
struct Shape {
  dim3 block;
  int each = 0;  ///< vectors a thread has of a row; 0: any number, not in registers
};

/// `enough`: threads of a row above which each gets more vectors instead, up to `most_each`.
Shape ShapeOf(std::int64_t vectors, std::int64_t enough, int most_each, std::int64_t most_threads = kMaxThreads) {
  std::int64_t lanes = 1;
  while (lanes < kWarp && lanes < vectors) lanes *= 2;
  if (vectors <= kWarp) return {dim3(lanes, kBlock / lanes), 1};
  int each = 1;
  while (each < most_each && vectors > enough * each) each *= 2;
  if (vectors > most_threads * each) return {dim3(kMaxThreads), 0};
  return {dim3(RoundUp((vectors + each - 1) / each, kWarp)), each};
}

template <class Work>
void DispatchEach(int each, Work&& work) {
  switch (each) {
    case 0:
      return work(Constant<0>{});
    case 1:
      return work(Constant<1>{});
    case 2:
      return work(Constant<2>{});
    case 4:
      return work(Constant<4>{});
    default:
      return work(Constant<8>{});
  }
}

/// Calls work(i, first column) for this thread's vectors of a row.
template <int kEach, int N, class Work>
__device__ __forceinline__ void ForEachPack(std::int64_t columns, Work&& work) {
  if constexpr (kEach == 0) {
    for (std::int64_t at = threadIdx.x * N; at < columns; at += blockDim.x * N) work(0, at);
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t at = (static_cast<std::int64_t>(i) * blockDim.x + threadIdx.x) * N;
      if (at < columns) work(i, at);
    }
  }
}

template <class T, int N, int kEach, bool kMean>
__global__ void __launch_bounds__(kMaxThreads) NormForwardKernel(NormForwardArgs a) {
  StartEarly();
  const auto *x = static_cast<const T*>(a.x), *delta = static_cast<const T*>(a.delta);
  const auto *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
  auto *sum = static_cast<T*>(a.sum), *out = static_cast<T*>(a.out);
  const float inverse = 1.0F / static_cast<float>(a.columns);
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * blockDim.y; base < a.rows;
       base += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    const std::int64_t row = base + threadIdx.y;
    const std::int64_t columns = row < a.rows ? a.columns : 0;  // threads without a row take part in the sums
    const std::int64_t begin = row * a.columns;
    Pack<T, N> kept[kEach > 0 ? kEach : 1];
    float total = 0;
    ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
      Pack<T, N> value = Load<N>(x + begin + at);
      if (delta != nullptr) {
        const Pack<T, N> added = Load<N>(delta + begin + at);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          value.values[k] = FromFloat<T>(ToFloat(value.values[k]) + ToFloat(added.values[k]));
        }
        Store(sum + begin + at, value);
      }
      kept[i] = value;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float v = ToFloat(value.values[k]);
        total += kMean ? v : v * v;
      }
    });
    const T* again = delta != nullptr ? sum : x;  // of rows that are not in registers
    const auto read = [&](int i, std::int64_t at) {
      if constexpr (kEach == 0) return Load<N>(again + begin + at);
      Forget(kept[i]);
      return kept[i];
    };
    total = OverRow(total, Sum());
    float mean = 0, squares = total;
    if constexpr (kMean) {
      mean = total * inverse;
      squares = 0;  // of differences from the mean: a row's mean may be much larger than its spread
      ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
        const Pack<T, N> value = read(i, at);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float difference = ToFloat(value.values[k]) - mean;
          squares += difference * difference;
        }
      });
      squares = OverRow(squares, Sum());
    }
    const float rstd = 1 / sqrtf(squares * inverse + a.eps);
    if (threadIdx.x == 0 && row < a.rows) {
      a.rstd[row] = rstd;
      if constexpr (kMean) a.mean[row] = mean;
    }
    ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
      const Pack<T, N> value = read(i, at), w = Load<N>(weight + at);
      Pack<T, N> result, b;
      if constexpr (kMean) b = Load<N>(bias + at);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if constexpr (kMean) {
          const float normed = (ToFloat(value.values[k]) - mean) * rstd;
          result.values[k] = FromFloat<T>(normed * ToFloat(w.values[k]) + ToFloat(b.values[k]));
        } else {
          float normed = ToFloat(value.values[k]) * rstd;
          if (a.offset == 0) normed = ToFloat(FromFloat<T>(normed));
          result.values[k] = FromFloat<T>((a.offset + ToFloat(w.values[k])) * normed);
        }
      }
      Store(out + begin + at, result);
    });
  }
}

/// The most vectors of a row that a thread of the backward pass has, and the most threads: what registers allow.
constexpr int BackwardEach(int n) { return n == 1 ? 8 : 4; }
constexpr int BackwardThreads(int n, int each) {
  return (n == 8 && each > 0) || (n == 4 && (each == 1 || each == 2)) ? 512 : 1024;
}
/// Blocks on a multiprocessor at least: with little to load, one alone would wait too long for memory.
constexpr int BackwardBlocks(int n, int each) { return n > 1 && each == 1 ? 2 : 1; }

/// A block walks over rows and keeps the weight's gradient of its columns in registers. Without registers (kEach 0), it
/// adds it to its own row of `partial`.
template <class T, int N, int kEach, bool kMean>
__global__ void __launch_bounds__(BackwardThreads(N, kEach), BackwardBlocks(N, kEach))
    NormBackwardKernel(NormBackwardArgs a) {
  constexpr int kKept = kEach > 0 ? kEach : 1, kWidth = kMean ? 2 : 1;
  const auto *x = static_cast<const T*>(a.x), *dout = static_cast<const T*>(a.dout);
  const auto *dsum = static_cast<const T*>(a.dsum), *weight = static_cast<const T*>(a.weight);
  auto* dx = static_cast<T*>(a.dx);
  const float inverse = 1.0F / static_cast<float>(a.columns);
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  float* const partial = a.partial + group * kWidth * a.columns;
  float dweight[kKept * N], dbias[kMean ? kKept * N : 1];
  if constexpr (kEach > 0) {
#pragma unroll
    for (int k = 0; k < kKept * N; ++k) dweight[k] = 0;
    if constexpr (kMean) {
#pragma unroll
      for (int k = 0; k < kKept * N; ++k) dbias[k] = 0;
    }
  } else {
    for (std::int64_t at = threadIdx.x; at < kWidth * a.columns; at += blockDim.x) partial[at] = 0;
    __syncthreads();
  }
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * blockDim.y; base < a.rows;
       base += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    const std::int64_t row = base + threadIdx.y;
    const std::int64_t columns = row < a.rows ? a.columns : 0, begin = row * a.columns;
    const float rstd = row < a.rows ? a.rstd[row] : 0;
    float mean = 0;
    if constexpr (kMean) mean = row < a.rows ? a.mean[row] : 0;
    Pack<T, N> of_x[kKept], of_dout[kKept], of_dsum[kKept];
    float sum = 0, dot = 0;
    if constexpr (kEach > 0) {
      ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
        of_x[i] = Load<N>(x + begin + at);
        of_dout[i] = Load<N>(dout + begin + at);
        if (dsum != nullptr) of_dsum[i] = Load<N>(dsum + begin + at);
      });
    }
    ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
      if constexpr (kEach == 0) {
        of_x[0] = Load<N>(x + begin + at);
        of_dout[0] = Load<N>(dout + begin + at);
      }
      const Pack<T, N> w = Load<N>(weight + at);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float through = ToFloat(of_dout[i].values[k]) * (a.offset + ToFloat(w.values[k]));
        const float normed = (ToFloat(of_x[i].values[k]) - mean) * rstd;
        if constexpr (kMean) sum += through;
        dot += through * normed;
      }
    });
    dot = OverRow(dot, Sum()) * inverse;
    if constexpr (kMean) sum = OverRow(sum, Sum()) * inverse;
    ForEachPack<kEach, N>(columns, [&](int i, std::int64_t at) {
      if constexpr (kEach == 0) {
        of_x[0] = Load<N>(x + begin + at);
        of_dout[0] = Load<N>(dout + begin + at);
        if (dsum != nullptr) of_dsum[0] = Load<N>(dsum + begin + at);
      } else {
        Forget(of_x[i]);
        Forget(of_dout[i]);
      }
      const Pack<T, N> w = Load<N>(weight + at);
      Pack<T, N> result;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float d = ToFloat(of_dout[i].values[k]), normed = (ToFloat(of_x[i].values[k]) - mean) * rstd;
        if constexpr (kEach > 0) {
          dweight[i * N + k] += d * normed;
          if constexpr (kMean) dbias[i * N + k] += d;
        } else {
          partial[at + k] += d * normed;
          if constexpr (kMean) partial[a.columns + at + k] += d;
        }
        float gradient = rstd * (d * (a.offset + ToFloat(w.values[k])) - sum - normed * dot);
        if (dsum != nullptr) gradient += ToFloat(of_dsum[i].values[k]);
        result.values[k] = FromFloat<T>(gradient);
      }
      Store(dx + begin + at, result);
    });
  }
  if constexpr (kEach > 0) {
    ForEachPack<kEach, N>(a.columns, [&](int i, std::int64_t at) {
#pragma unroll
      for (int k = 0; k < N; ++k) partial[at + k] = dweight[i * N + k];
      if constexpr (kMean) {
#pragma unroll
        for (int k = 0; k < N; ++k) partial[a.columns + at + k] = dbias[i * N + k];
      }
    });
  }
}

/// Calls work(kernel, shape) with the kernel for these rows.
template <class Work>
void WithBackward(Element element, const NormBackwardArgs& args, Work&& work) {
  DispatchPacks(element, args.columns, {args.x, args.dout, args.dsum, args.weight, args.dx},
                [&]<class T, int N>(T, Constant<N>) {
                  const Shape shape =
                      ShapeOf(args.columns / N, /*enough=*/512, BackwardEach(N), BackwardThreads(N, BackwardEach(N)));
                  DispatchEach(shape.each, [&]<int kEach>(Constant<kEach>) {
                    if constexpr (kEach <= BackwardEach(N)) {
                      if (args.mean != nullptr) {
                        work(NormBackwardKernel<T, N, kEach, true>, shape);
                      } else {
                        work(NormBackwardKernel<T, N, kEach, false>, shape);
                      }
                    }
                  });
                });
}

}  // namespace

void NormForward(Element element, const NormForwardArgs& args, Stream stream) {
  if (args.rows == 0) return;
  DispatchPacks(element, args.columns, {args.x, args.delta, args.weight, args.bias, args.sum, args.out},
                [&]<class T, int N>(T, Constant<N>) {
                  const Shape shape = ShapeOf(args.columns / N, /*enough=*/256, /*most_each=*/8);
                  const unsigned blocks = BlocksFor(args.rows, shape.block.y);
                  DispatchEach(shape.each, [&]<int kEach>(Constant<kEach>) {
                    if (args.mean != nullptr) {
                      Launch(NormForwardKernel<T, N, kEach, true>, blocks, shape.block, stream, args);
                    } else {
                      Launch(NormForwardKernel<T, N, kEach, false>, blocks, shape.block, stream, args);
                    }
                  });
                });
}

NormGrid NormBackwardGrid(Element element, const NormBackwardArgs& args) {
  NormGrid grid;
  if (args.rows == 0) return grid;
  WithBackward(element, args, [&](auto* kernel, const Shape& shape) {
    int resident = 0;
    const int threads = static_cast<int>(shape.block.x * shape.block.y);
    Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0), "NormBackward");
    const std::int64_t most = std::max(1, resident) * Multiprocessors();
    grid = {BlocksFor(args.rows, shape.block.y, most), shape.block.y};
  });
  return grid;
}

void NormBackward(Element element, const NormBackwardArgs& args, const NormGrid& grid, Stream stream) {
  if (args.rows == 0) return;
  WithBackward(element, args,
               [&](auto* kernel, const Shape& shape) { Start(kernel, grid.blocks, shape.block, stream, args); });
}

}  // namespace millrace::engine::cuda
