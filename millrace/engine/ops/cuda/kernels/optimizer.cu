// The updates of optimizers. One launch goes over all runs: a block looks up its run and makes one pass over the
// memory of its elements.
#include <type_traits>

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kBlock = 8192;  // elements; a change changes the order of sums
constexpr int kFour = 4;               // float32 elements in a vector of 16 bytes

/// The elements of a block.
struct Place {
  const OptimizerRun* run;
  std::int64_t from, end;
};
__device__ __forceinline__ Place PlaceOf(const OptimizerRuns& runs) {
  const std::int64_t block = blockIdx.x;
  std::int64_t low = 0, high = runs.count - 1;  // the last run whose first block is not behind this one
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (runs.runs[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const OptimizerRun& run = runs.runs[low];
  const std::int64_t from = (block - run.first_block) * kBlock;
  return {&run, from, run.count - from < kBlock ? run.count : from + kBlock};
}

template <int N, class T>
__device__ __forceinline__ Pack<float, N> LoadWide(const void* from, std::int64_t at) {
  const Pack<T, N> pack = Load<N>(static_cast<const T*>(from) + at);
  Pack<float, N> wide;
#pragma unroll
  for (int k = 0; k < N; ++k) wide.values[k] = ToFloat(pack.values[k]);
  return wide;
}

/// Returns the number in the whole tensor of the run's element `at`.
__device__ __forceinline__ std::int64_t NumberOf(const cpu::RoundedElements& elements, std::int64_t at) {
  const std::int64_t element = elements.first + at;
  if (element < elements.numbers.run) return elements.numbers.offset + element;  // always, unless columns are divided
  std::int64_t run = 0;
  if (static_cast<std::uint64_t>(element) >> 32 == 0) {  // the run is shorter; the division of 32 bits is quicker
    run = static_cast<std::uint32_t>(element) / static_cast<std::uint32_t>(elements.numbers.run);
  } else {
    run = element / elements.numbers.run;
  }
  const std::int64_t rest = element - run * elements.numbers.run;
  return run * elements.numbers.stride + elements.numbers.offset + rest;
}
/// Stores elements of the run from `at` on, rounded stochastically.
template <int N>
__device__ __forceinline__ void StoreRounded(const cpu::RoundedElements& elements, cpu::RoundedNumber number, void* to,
                                             std::int64_t at, const Pack<float, N>& wide) {
  const std::uint64_t key = cpu::RoundingKey(elements.key, number);
  Pack<Bf16, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const auto in_whole = static_cast<std::uint64_t>(NumberOf(elements, at + k));
    const std::uint32_t random =
        cpu::RoundingBits(key, static_cast<std::uint32_t>(in_whole), static_cast<std::uint32_t>(in_whole >> 32));
    pack.values[k] = __ushort_as_bfloat16(cpu::RoundStochastically(wide.values[k], random));
  }
  Store(static_cast<Bf16*>(to) + at, pack);
}
/// Stores a moment of type M.
template <int N, class M>
__device__ __forceinline__ void StoreMoment(const OptimizerRun& run, cpu::RoundedNumber number, void* to,
                                            std::int64_t at, const Pack<float, N>& moment) {
  if constexpr (std::is_same_v<M, float>) {
    Store(static_cast<float*>(to) + at, moment);
  } else {
    StoreRounded(run.rounded, number, to, at, moment);
  }
}

/// Updates N elements, whose weights are T and whose moments are M. Update::kMoments says how many moments it has,
/// Update::kWeights whether it sets weights.
template <int N, class T, class M, class Update>
__device__ __forceinline__ void UpdateSome(const OptimizerRun& run, std::int64_t at, Update& update) {
  const bool has_master = run.master != nullptr;
  Pack<float, N> master = has_master ? Load<N>(run.master + at) : LoadWide<N, T>(run.weights, at);
  Pack<float, N> gradient = Load<N>(run.gradients + at), moment1{}, moment2{};
  if constexpr (Update::kMoments > 0) moment1 = LoadWide<N, M>(run.moment1, at);
  if constexpr (Update::kMoments > 1) moment2 = LoadWide<N, M>(run.moment2, at);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    update(master.values[k], gradient.values[k], moment1.values[k], moment2.values[k]);
  }
  Store(run.gradients + at, gradient);
  using Number = cpu::RoundedNumber;
  if constexpr (Update::kMoments > 0) StoreMoment<N, M>(run, Number::kMoment1, run.moment1, at, moment1);
  if constexpr (Update::kMoments > 1) StoreMoment<N, M>(run, Number::kMoment2, run.moment2, at, moment2);
  if constexpr (Update::kWeights) {
    if constexpr (std::is_same_v<T, Bf16>) {
      if (!has_master) return StoreRounded(run.rounded, Number::kWeight, run.weights, at, master);
    }
    Store(run.master + at, master);
    if constexpr (sizeof(T) < sizeof(float)) {  // of float32 models, weights and master are the same
      Pack<T, N> weight;
#pragma unroll
      for (int k = 0; k < N; ++k) weight.values[k] = FromFloat<T>(master.values[k]);
      Store(static_cast<T*>(run.weights) + at, weight);
    }
  }
}

template <class T, class M, class Update>
__device__ __forceinline__ void UpdateBlock(const Place& place, Update& update) {
  const OptimizerRun run = *place.run;
  std::int64_t begin = place.from;
  if (run.aligned) {
    const std::int64_t whole = place.from + (place.end - place.from) / kFour * kFour;
    for (std::int64_t at = place.from + threadIdx.x * kFour; at < whole; at += kThreads * kFour) {
      UpdateSome<kFour, T, M>(run, at, update);
    }
    begin = whole;
  }
  for (std::int64_t at = begin + threadIdx.x; at < place.end; at += kThreads) UpdateSome<1, T, M>(run, at, update);
}

struct AdamwUpdate {
  static constexpr int kMoments = 2;
  static constexpr bool kWeights = true;
  cpu::AdamwStep step;
  __device__ __forceinline__ void operator()(float& weight, float& gradient, float& moment1, float& moment2) const {
    weight = AdamwOne(step, weight, gradient, moment1, moment2);
    gradient = 0;
  }
};
template <int kMomentum>
struct SgdUpdate {
  static constexpr int kMoments = kMomentum;
  static constexpr bool kWeights = true;
  cpu::SgdStep step;
  __device__ __forceinline__ void operator()(float& weight, float& gradient, float& momentum, float&) const {
    weight = SgdOne(step, weight, gradient, momentum);
    gradient = 0;
  }
};
struct LambDirectionUpdate {
  static constexpr int kMoments = 2;
  static constexpr bool kWeights = false;
  cpu::LambStep step;
  float decay;
  double weight_squares, update_squares;
  __device__ __forceinline__ void operator()(float& weight, float& gradient, float& moment1, float& moment2) {
    gradient = LambOne(step, decay, weight, gradient, moment1, moment2);
    weight_squares += static_cast<double>(weight) * static_cast<double>(weight);
    update_squares += static_cast<double>(gradient) * static_cast<double>(gradient);
  }
};
struct LambApplyUpdate {
  static constexpr int kMoments = 0;
  static constexpr bool kWeights = true;
  float rate;
  __device__ __forceinline__ void operator()(float& weight, float& gradient, float&, float&) const {
    weight -= rate * gradient;
    gradient = 0;
  }
};

template <class T, class M>
__global__ void __launch_bounds__(kThreads) AdamwKernel(OptimizerRuns runs, cpu::AdamwStep step) {
  const Place place = PlaceOf(runs);
  AdamwUpdate update{step};
  update.step.lr = place.run->lr;
  update.step.weight_decay = place.run->decay;
  UpdateBlock<T, M>(place, update);
}

template <class T, class M>
__global__ void __launch_bounds__(kThreads) SgdKernel(OptimizerRuns runs, cpu::SgdStep step) {
  const Place place = PlaceOf(runs);
  step.lr = place.run->lr;
  step.weight_decay = place.run->decay;
  if (place.run->moment1 != nullptr) {
    SgdUpdate<1> update{step};
    UpdateBlock<T, M>(place, update);
  } else {
    SgdUpdate<0> update{step};
    UpdateBlock<T, M>(place, update);
  }
}

template <class T, class M>
__global__ void __launch_bounds__(kThreads)
    LambDirectionKernel(OptimizerRuns runs, cpu::LambStep step, cpu::LambSquares* squares) {
  const Place place = PlaceOf(runs);
  LambDirectionUpdate update{step, place.run->decay, 0, 0};
  UpdateBlock<T, M>(place, update);
  const double weight = OverRow(update.weight_squares, Sum()), direction = OverRow(update.update_squares, Sum());
  if (threadIdx.x > 0) return;
  squares[blockIdx.x].weight = weight;
  squares[blockIdx.x].update = direction;
}

template <class T>
__global__ void __launch_bounds__(kThreads) LambApplyKernel(OptimizerRuns runs) {
  const Place place = PlaceOf(runs);
  LambApplyUpdate update{place.run->lr};
  UpdateBlock<T, float>(place, update);
}

/// Calls work(T{}, M{}) with the types of weights and moments.
template <class Work>
void DispatchState(Element element, bool bf16_moments, const Work& work) {
  DispatchElement(element, [&]<class T>(T weight) {
    if (bf16_moments) {
      work(weight, Bf16{});
    } else {
      work(weight, float{});
    }
  });
}

constexpr std::int64_t kSumBlock = 65'536;  // elements; a change changes the order of sums

__global__ void __launch_bounds__(kThreads) SumOfSquaresKernel(const float* x, std::int64_t count, double* sums) {
  const std::int64_t from = static_cast<std::int64_t>(blockIdx.x) * kSumBlock;
  const std::int64_t end = count - from < kSumBlock ? count : from + kSumBlock;
  double sum = 0;
  if (reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && end - from == kSumBlock) {
#pragma unroll 4
    for (std::int64_t at = from + threadIdx.x * kFour; at < end; at += kThreads * kFour) {
      const Pack<float, kFour> value = Load<kFour>(x + at);
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        sum += static_cast<double>(value.values[k]) * static_cast<double>(value.values[k]);
      }
    }
  } else {
    for (std::int64_t at = from + threadIdx.x; at < end; at += kThreads) {
      sum += static_cast<double>(x[at]) * static_cast<double>(x[at]);
    }
  }
  sum = OverRow(sum, Sum());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

std::int64_t SetBlocks(Element element, bool bf16_moments, OptimizerRun* runs, std::int64_t count) {
  std::int64_t blocks = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    OptimizerRun& run = runs[i];
    const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
    const std::uintptr_t moments = address(run.moment1) | address(run.moment2);
    run.aligned = (address(run.master) | address(run.gradients)) % 16 == 0 && moments % (bf16_moments ? 8 : 16) == 0 &&
                  address(run.weights) % (element == Element::kFloat ? 16 : 8) == 0;
    run.first_block = blocks;
    blocks += (run.count + kBlock - 1) / kBlock;
  }
  return blocks;
}

void Adamw(Element element, const OptimizerRuns& runs, const cpu::AdamwStep& step, Stream stream) {
  if (runs.blocks == 0) return;
  DispatchState(element, runs.bf16_moments, [&]<class T, class M>(T, M) {
    Start(AdamwKernel<T, M>, static_cast<unsigned>(runs.blocks), kThreads, stream, runs, step);
  });
}

void Sgd(Element element, const OptimizerRuns& runs, const cpu::SgdStep& step, Stream stream) {
  if (runs.blocks == 0) return;
  DispatchState(element, runs.bf16_moments, [&]<class T, class M>(T, M) {
    Start(SgdKernel<T, M>, static_cast<unsigned>(runs.blocks), kThreads, stream, runs, step);
  });
}

void LambDirection(Element element, const OptimizerRuns& runs, const cpu::LambStep& step, cpu::LambSquares* squares,
                   Stream stream) {
  if (runs.blocks == 0) return;
  DispatchState(element, runs.bf16_moments, [&]<class T, class M>(T, M) {
    Start(LambDirectionKernel<T, M>, static_cast<unsigned>(runs.blocks), kThreads, stream, runs, step, squares);
  });
}

void LambApply(Element element, const OptimizerRuns& runs, Stream stream) {
  if (runs.blocks == 0) return;
  DispatchElement(element, [&]<class T>(T) {
    Start(LambApplyKernel<T>, static_cast<unsigned>(runs.blocks), kThreads, stream, runs);
  });
}

std::int64_t SumOfSquaresBlocks(std::int64_t count) { return (count + kSumBlock - 1) / kSumBlock; }

void SumOfSquares(const float* x, std::int64_t count, double* sums, Stream stream) {
  if (count == 0) return;
  Start(SumOfSquaresKernel, static_cast<unsigned>(SumOfSquaresBlocks(count)), kThreads, stream, x, count, sums);
}

}  // namespace millrace::engine::cuda
