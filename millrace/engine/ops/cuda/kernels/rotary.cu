// Rotary positions. A thread turns one vector of each half of a head, or two neighbouring vectors, or copies one.
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;

/// Work on a row, in units of a thread: first pairs of vectors that turn, then vectors of heads behind the dimensions
/// that turn, then vectors of values.
struct Units {
  std::int64_t rows = 0;
  Divisor each;                       ///< units of a row
  Divisor half, still;                ///< of a head: units that turn, and that do not, if there are any
  std::int64_t turned = 0, kept = 0;  ///< of a row: units that turn, and those and the rest of these heads
};

template <class T, int N, bool kNeighbours>
__device__ __forceinline__ void TurnUnit(const RotateArgs& a, const Units& units, std::int64_t row, std::int64_t unit) {
  const Quotient place = units.half.Divide(unit);
  const std::int64_t j = place.rest * N, half = a.dim / 2;
  const std::int64_t begin = row * a.columns + place.quotient * a.head_dim;
  const std::int64_t first = begin + (kNeighbours ? 2 * j : j), second = first + (kNeighbours ? N : half);
  const auto* x = static_cast<const T*>(a.x);
  auto* out = static_cast<T*>(a.out);
  Pack<T, N> one = Load<N>(x + first), two = Load<N>(x + second);
  const std::int64_t angle = static_cast<std::int64_t>(a.positions[row]) * half + j;
  const auto turn = [&](T& p, T& q, int k) {
    const Pair pair = Turned({ToFloat(p), ToFloat(q)}, __ldg(a.cosine + angle + k), a.sign * __ldg(a.sine + angle + k));
    p = FromFloat<T>(pair.a);
    q = FromFloat<T>(pair.b);
  };
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (!kNeighbours) {
      turn(one.values[k], two.values[k], k);
    } else if constexpr (N == 1) {
      turn(one.values[0], two.values[0], 0);
    } else if (k < N / 2) {
      turn(one.values[2 * k], one.values[2 * k + 1], k);
    } else {
      turn(two.values[2 * k - N], two.values[2 * k - N + 1], k);
    }
  }
  Store(out + first, one);
  Store(out + second, two);
}

template <class T, int N, bool kNeighbours>
__global__ void __launch_bounds__(kThreads) RotateKernel(RotateArgs a, Units units) {
  StartEarly();
  const std::int64_t count = units.rows * units.each.value(), step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const Quotient place = units.each.Divide(i);
    const std::int64_t row = place.quotient, unit = place.rest;
    if (unit < units.turned) {
      TurnUnit<T, N, kNeighbours>(a, units, row, unit);
      continue;
    }
    std::int64_t column = 0;
    if (unit < units.kept) {
      const Quotient head = units.still.Divide(unit - units.turned);
      column = head.quotient * a.head_dim + a.dim + head.rest * N;
    } else {
      column = a.heads * a.head_dim + (unit - units.kept) * N;
    }
    const std::int64_t at = row * a.columns + column;
    Store(static_cast<T*>(a.out) + at, Load<N>(static_cast<const T*>(a.x) + at));
  }
}

}  // namespace

void Rotate(Element element, const RotateArgs& args, Stream stream) {
  const std::int64_t half = args.dim / 2;
  const auto run = [&]<class T, int N>(T, Constant<N>) {
    const std::int64_t of_half = half / N, still = (args.head_dim - args.dim) / N;
    Units units{.rows = args.rows, .turned = args.heads * of_half};
    units.kept = units.turned + args.heads * still;
    const std::int64_t each = units.kept + (args.columns - args.heads * args.head_dim) / N;
    if (args.rows * each == 0) return;
    units.each = Divisor(each);
    if (of_half > 0) units.half = Divisor(of_half);
    if (still > 0) units.still = Divisor(still);
    const unsigned blocks = BlocksFor(args.rows * each, kThreads);
    if (args.neighbours) {
      Launch(RotateKernel<T, N, true>, blocks, kThreads, stream, args, units);
    } else {
      Launch(RotateKernel<T, N, false>, blocks, kThreads, stream, args, units);
    }
  };
  // A vector's elements are a power of two: all three distances are multiples of it if their bits together are.
  DispatchPacks(element, half | args.head_dim | args.columns, {args.x, args.out}, run);
}

}  // namespace millrace::engine::cuda
