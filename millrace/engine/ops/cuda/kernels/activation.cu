// Functions of elements. A thread loads several vectors before it computes, so that enough bytes are on their way.
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 2;  // vectors of each operand that a thread loads at once

template <class Work>
void DispatchFunction(Function function, Work&& work) {
  switch (function) {
    case Function::kGeluErf:
      return work(GeluErf{});
    case Function::kGeluTanh:
      return work(GeluTanh{});
    case Function::kSilu:
      return work(Silu{});
    case Function::kRelu:
      return work(Relu{});
  }
}

/// Calls work(number of a vector) in two steps for kEach vectors: load, then store.
template <class LoadOne, class StoreOne>
__device__ __forceinline__ void ForVectors(std::int64_t vectors, LoadOne&& load, StoreOne&& store) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * kEach;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x; base < vectors;
       base += step) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (base + i * kThreads < vectors) load(i, base + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (base + i * kThreads < vectors) store(i, base + i * kThreads);
    }
  }
}

template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const T* x, T* out, std::int64_t vectors) {
  StartEarly();
  Pack<T, N> in[kEach];
  ForVectors(
      vectors, [&](int i, std::int64_t at) { in[i] = Load<N>(x + at * N); },
      [&](int i, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < N; ++k) in[i].values[k] = FromFloat<T>(F::Value(ToFloat(in[i].values[k])));
        Store(out + at * N, in[i]);
      });
}

template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads) BackwardKernel(const T* dout, const T* x, T* dx, std::int64_t vectors) {
  Pack<T, N> in[kEach], d[kEach];
  ForVectors(
      vectors,
      [&](int i, std::int64_t at) {
        in[i] = Load<N>(x + at * N);
        d[i] = Load<N>(dout + at * N);
      },
      [&](int i, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          in[i].values[k] = FromFloat<T>(ToFloat(d[i].values[k]) * F::Slope(ToFloat(in[i].values[k])));
        }
        Store(dx + at * N, in[i]);
      });
}

/// `row_vectors`: of a row of the result.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    SwigluForwardKernel(const T* gate_up, T* out, std::int64_t vectors, Divisor row_vectors) {
  StartEarly();
  Pack<T, N> gate[kEach], up[kEach];
  ForVectors(
      vectors,
      [&](int i, std::int64_t at) {
        const std::int64_t of_gate = at + row_vectors.Divide(at).quotient * row_vectors.value();
        gate[i] = Load<N>(gate_up + of_gate * N);
        up[i] = Load<N>(gate_up + (of_gate + row_vectors.value()) * N);
      },
      [&](int i, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float silu = ToFloat(FromFloat<T>(Silu::Value(ToFloat(gate[i].values[k]))));
          gate[i].values[k] = FromFloat<T>(silu * ToFloat(up[i].values[k]));
        }
        Store(out + at * N, gate[i]);
      });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    SwigluBackwardKernel(const T* dout, const T* gate_up, T* dgate_up, std::int64_t vectors, Divisor row_vectors) {
  Pack<T, N> gate[kEach], up[kEach], d[kEach];
  const auto of_gate = [&](std::int64_t at) { return at + row_vectors.Divide(at).quotient * row_vectors.value(); };
  ForVectors(
      vectors,
      [&](int i, std::int64_t at) {
        gate[i] = Load<N>(gate_up + of_gate(at) * N);
        up[i] = Load<N>(gate_up + (of_gate(at) + row_vectors.value()) * N);
        d[i] = Load<N>(dout + at * N);
      },
      [&](int i, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float g = ToFloat(gate[i].values[k]), gradient = ToFloat(d[i].values[k]), sigmoid = Sigmoid(g);
          gate[i].values[k] = FromFloat<T>(gradient * ToFloat(up[i].values[k]) * sigmoid * (1 + g * (1 - sigmoid)));
          up[i].values[k] = FromFloat<T>(gradient * g * sigmoid);
        }
        Store(dgate_up + of_gate(at) * N, gate[i]);
        Store(dgate_up + (of_gate(at) + row_vectors.value()) * N, up[i]);
      });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) AddKernel(const T* a, const T* b, T* out, std::int64_t vectors) {
  StartEarly();
  Pack<T, N> left[kEach], right[kEach];
  ForVectors(
      vectors,
      [&](int i, std::int64_t at) {
        left[i] = Load<N>(a + at * N);
        right[i] = Load<N>(b + at * N);
      },
      [&](int i, std::int64_t at) {
        Pack<T, N> sum;
#pragma unroll
        for (int k = 0; k < N; ++k)
          sum.values[k] = FromFloat<T>(ToFloat(left[i].values[k]) + ToFloat(right[i].values[k]));
        Store(out + at * N, sum);
      });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) ScaleKernel(T* x, std::int64_t vectors, const float* factor) {
  const float by = *factor;
  if (by == 1) return;
  Pack<T, N> in[kEach];
  ForVectors(
      vectors, [&](int i, std::int64_t at) { in[i] = Load<N>(x + at * N); },
      [&](int i, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < N; ++k) in[i].values[k] = FromFloat<T>(ToFloat(in[i].values[k]) * by);
        Store(x + at * N, in[i]);
      });
}

unsigned BlocksOf(std::int64_t vectors) { return BlocksFor(vectors, kThreads * kEach); }

}  // namespace

void ActivateForward(Element element, Function function, const void* x, void* out, std::int64_t count, Stream stream) {
  if (count == 0) return;
  DispatchPacks(element, count, {x, out}, [&]<class T, int N>(T, Constant<N>) {
    DispatchFunction(function, [&]<class F>(F) {
      Launch(ForwardKernel<T, N, F>, BlocksOf(count / N), kThreads, stream, static_cast<const T*>(x),
             static_cast<T*>(out), count / N);
    });
  });
}

void ActivateBackward(Element element, Function function, const void* dout, const void* x, void* dx, std::int64_t count,
                      Stream stream) {
  if (count == 0) return;
  DispatchPacks(element, count, {dout, x, dx}, [&]<class T, int N>(T, Constant<N>) {
    DispatchFunction(function, [&]<class F>(F) {
      Start(BackwardKernel<T, N, F>, BlocksOf(count / N), kThreads, stream, static_cast<const T*>(dout),
            static_cast<const T*>(x), static_cast<T*>(dx), count / N);
    });
  });
}

void SwigluForward(Element element, const void* gate_up, void* out, std::int64_t rows, std::int64_t columns,
                   Stream stream) {
  if (rows * columns == 0) return;
  DispatchPacks(element, columns, {gate_up, out}, [&]<class T, int N>(T, Constant<N>) {
    const std::int64_t vectors = rows * columns / N;
    Launch(SwigluForwardKernel<T, N>, BlocksOf(vectors), kThreads, stream, static_cast<const T*>(gate_up),
           static_cast<T*>(out), vectors, Divisor(columns / N));
  });
}

void SwigluBackward(Element element, const void* dout, const void* gate_up, void* dgate_up, std::int64_t rows,
                    std::int64_t columns, Stream stream) {
  if (rows * columns == 0) return;
  DispatchPacks(element, columns, {dout, gate_up, dgate_up}, [&]<class T, int N>(T, Constant<N>) {
    const std::int64_t vectors = rows * columns / N;
    Start(SwigluBackwardKernel<T, N>, BlocksOf(vectors), kThreads, stream, static_cast<const T*>(dout),
          static_cast<const T*>(gate_up), static_cast<T*>(dgate_up), vectors, Divisor(columns / N));
  });
}

void Add(Element element, const void* a, const void* b, void* out, std::int64_t count, Stream stream) {
  if (count == 0) return;
  DispatchPacks(element, count, {a, b, out}, [&]<class T, int N>(T, Constant<N>) {
    Launch(AddKernel<T, N>, BlocksOf(count / N), kThreads, stream, static_cast<const T*>(a), static_cast<const T*>(b),
           static_cast<T*>(out), count / N);
  });
}

void Scale(Element element, void* x, std::int64_t count, const float* factor, Stream stream) {
  if (count == 0) return;
  DispatchPacks(element, count, {x}, [&]<class T, int N>(T, Constant<N>) {
    Start(ScaleKernel<T, N>, BlocksOf(count / N), kThreads, stream, static_cast<T*>(x), count / N, factor);
  });
}

}  // namespace millrace::engine::cuda
