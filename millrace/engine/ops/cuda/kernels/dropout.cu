// Dropout with the CPU's random numbers: one call of Philox for four elements.
#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;

/// The words of a counter that elements of a row share.
struct RowCounter {
  std::uint32_t position, sample, high;
};
__device__ __forceinline__ RowCounter CounterOf(const DropoutArgs& a, Divisor row_length, std::int64_t row) {
  const Quotient token = row_length.Divide(a.first_token + row);
  const std::uint64_t sample = a.first_sample + static_cast<std::uint64_t>(token.quotient);
  return {static_cast<std::uint32_t>(token.rest), static_cast<std::uint32_t>(sample),
          static_cast<std::uint32_t>(sample >> 32)};
}

/// N is 1 or, if rows begin with the first of four elements of a counter, a multiple of four.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) DropoutKernel(DropoutArgs a, Divisor row_vectors, Divisor row_length) {
  const auto* x = static_cast<const T*>(a.x);
  auto* out = static_cast<T*>(a.out);
  const std::int64_t count = a.rows * row_vectors.value();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const Quotient place = row_vectors.Divide(i);
    const RowCounter counter = CounterOf(a, row_length, place.quotient);
    const std::int64_t column = a.first_column + place.rest * N;
    Pack<T, N> value = Load<N>(x + i * N);
#pragma unroll
    for (int group = 0; group < (N + 3) / 4; ++group) {
      const cpu::PhiloxWords random = cpu::Philox(a.choices.key, static_cast<std::uint32_t>(column / 4 + group),
                                                  counter.position, counter.sample, counter.high);
#pragma unroll
      for (int k = 0; k < 4 && k < N; ++k) {
        std::uint32_t word = random.words[k];
        if constexpr (N == 1) {
          const int of_four = static_cast<int>(column % 4);
          word = of_four == 0   ? random.words[0]
                 : of_four == 1 ? random.words[1]
                 : of_four == 2 ? random.words[2]
                                : random.words[3];
        }
        T& element = value.values[group * 4 + k];
        element = FromFloat<T>(word < a.choices.threshold ? 0.0F : ToFloat(element) * a.choices.scale);
      }
    }
    Store(out + i * N, value);
  }
}

}  // namespace

void Dropout(Element element, const DropoutArgs& args, Stream stream) {
  if (args.rows * args.columns == 0) return;
  // Vectors have a multiple of four elements, so they hold whole counters if the first column begins one.
  const std::int64_t columns = args.first_column % 4 == 0 ? args.columns : 1;
  DispatchPacks(element, columns, {args.x, args.out}, [&]<class T, int N>(T, Constant<N>) {
    Start(DropoutKernel<T, N>, BlocksFor(args.rows * args.columns / N, kThreads), kThreads, stream, args,
          Divisor(args.columns / N), Divisor(args.row_length));
  });
}

}  // namespace millrace::engine::cuda
