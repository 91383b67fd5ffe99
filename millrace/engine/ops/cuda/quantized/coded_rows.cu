// Products of few rows with codes. As those of kernels/few_rows.cu they are as fast as memory, if enough loads are
// under way at once and a code takes few instructions.
#include "millrace/engine/ops/cuda/quantized/codes.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
/// Returns the outputs that a block makes at once. They share the loads and conversions of x; a thread has their sums.
constexpr int OutputsAtOnce(int rows) { return rows == 1 ? 8 : 4; }

/// Returns kNumbers elements as float32. They begin at a vector.
template <class T>
__device__ __forceinline__ void LoadNumbers(const T* from, float (&numbers)[kNumbers]) {
#pragma unroll
  for (int first = 0; first < kNumbers; first += kPack<T>) {
    const Pack<T, kPack<T>> pack = Load<kPack<T>>(from + first);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) numbers[first + k] = ToFloat(pack.values[k]);
  }
}

/// Sums each of kCount numbers over the lanes of a warp. Returns sum number lane · kCount / kWarp. Each exchange halves
/// the numbers that a lane still has, so there are as many exchanges as numbers, and not five for each.
template <int kCount>
__device__ __forceinline__ float SumOverLanes(float (&numbers)[kCount]) {
  static_assert((kCount & (kCount - 1)) == 0 && kCount <= kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int kept = kCount / 2; kept > 0; kept /= 2) {
    const int other = kept * kWarp / kCount;  // the distance of the lane that keeps the other half
    const bool keeps_second = (lane & other) != 0;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float given = keeps_second ? numbers[i] : numbers[kept + i];
      const float own = keeps_second ? numbers[kept + i] : numbers[i];
      numbers[i] = own + __shfl_xor_sync(kAllLanes, given, other);
    }
  }
  return OverLanes(numbers[0], kWarp / kCount, Sum());
}

/// A block makes some outputs of all rows at a time, and takes such groups in turns with the other blocks. A thread
/// loads its next vectors of codes before it multiplies these.
template <class T, class Reader, int kRows>
__global__ void __launch_bounds__(kThreads) CodedRowsKernel(CodedProductArgs a, Reader codes) {
  constexpr int N = Reader::kTogether, kStep = kThreads * N;
  constexpr int kOutputs = OutputsAtOnce(kRows), kSums = kRows * kOutputs;
  __shared__ float of_warps[2][kWarps][kSums];
  __shared__ typename Reader::Shared shared;
  LetNextStart();
  codes.Fill(shared);
  const int thread = static_cast<int>(threadIdx.x), inputs = static_cast<int>(a.box.columns);
  const int outputs = static_cast<int>(a.box.rows), groups = (outputs + kOutputs - 1) / kOutputs;
  const int rows = static_cast<int>(a.rows), blocks = static_cast<int>(gridDim.x);
  int group = static_cast<int>(blockIdx.x);  // there are no more blocks than groups
  int at = thread * N;
  struct Vectors {
    typename Reader::Vector of[kOutputs];
  };
  const auto load = [&](int of_group, int from) {
    Vectors vectors{};
    if (from >= inputs) return vectors;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) vectors.of[i] = codes.Load(min(of_group * kOutputs + i, outputs - 1), from);
    return vectors;
  };
  Vectors now = load(group, at);  // the codes are none of what earlier kernels write
  __syncthreads();                // `shared` is filled
  WaitForEarlier();
  float sums[kSums] = {};
  int turn = 0;
  while (true) {
    const bool ends = at - thread * N + kStep >= inputs;
    const int next_group = ends ? group + blocks : group, next_at = ends ? thread * N : at + kStep;
    Vectors later{};
    if (next_group < groups) later = load(next_group, next_at);
    if (at < inputs) {
      float of_vectors[kSums] = {};
#pragma unroll
      for (int part = 0; part < N / kNumbers; ++part) {
        float weights[kOutputs][kNumbers];
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) codes.Numbers(now.of[i], part, shared, weights[i]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          float values[kNumbers];
          const std::int64_t from = min(row, rows - 1) * a.x_stride + at + part * kNumbers;
          LoadNumbers(static_cast<const T*>(a.x) + from, values);
#pragma unroll
          for (int i = 0; i < kOutputs; ++i) {
            float& sum = Reader::kScalesVectors ? of_vectors[row * kOutputs + i] : sums[row * kOutputs + i];
#pragma unroll
            for (int k = 0; k < kNumbers; ++k) sum += values[k] * weights[i][k];
          }
        }
      }
      if constexpr (Reader::kScalesVectors) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
          const float scale = codes.VectorScale(now.of[i], shared);
#pragma unroll
          for (int row = 0; row < kRows; ++row) sums[row * kOutputs + i] += of_vectors[row * kOutputs + i] * scale;
        }
      }
    }
    if (ends) {
      const float of_warp = SumOverLanes(sums);
      constexpr int kSame = kWarp / kSums;  // lanes with the same sum
      const int lane = thread % kWarp;
      if (lane % kSame == 0) of_warps[turn][thread / kWarp][lane / kSame] = of_warp;
#pragma unroll
      for (float& sum : sums) sum = 0;
      __syncthreads();  // before these sums are written again, there is another one
      const int row = thread / kOutputs, output = group * kOutputs + thread % kOutputs;
      if (row < rows && output < outputs) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[turn][warp][thread];
        static_cast<T*>(a.out)[row * a.out_stride + output] = FinishSum<T>(sum, codes, a.bias, output);
      }
      turn ^= 1;
      if (next_group >= groups) return;
    }
    group = next_group;
    at = next_at;
    now = later;
  }
}

template <class T, class Reader, int kRows>
void StartCodedRows(const CodedProductArgs& args, const Reader& codes, Stream stream) {
  int at_once = 0;
  Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, CodedRowsKernel<T, Reader, kRows>, kThreads, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const std::int64_t most = std::int64_t{std::max(at_once, 1)} * Multiprocessors();
  Launch(CodedRowsKernel<T, Reader, kRows>, BlocksFor(args.box.rows, OutputsAtOnce(kRows), most), kThreads, stream,
         args, codes);
}

template <class Kind>
bool Fits(Element element, const Kind& codes, const CodedProductArgs& args) {
  bool fits = false;
  DispatchElement(element, [&]<class T>(T) { fits = FitsReader<T>(codes, args); });
  return fits && args.rows >= 1 && args.rows <= kMaxCodedRows;
}

template <class Kind>
void Multiply(Element element, const Kind& codes, const CodedProductArgs& args, Stream stream) {
  using Reader = typename ReaderOf<Kind>::Type;
  if (args.box.rows == 0) return;
  const Reader reader(codes, args.box);
  DispatchElement(element, [&]<class T>(T) {
    if (args.rows == 1) return StartCodedRows<T, Reader, 1>(args, reader, stream);
    if (args.rows == 2) return StartCodedRows<T, Reader, 2>(args, reader, stream);
    StartCodedRows<T, Reader, kMaxCodedRows>(args, reader, stream);
  });
}

}  // namespace

bool FitsCodedRows(Element element, const Codes& codes, const CodedProductArgs& args) {
  return std::visit([&](const auto& of_kind) { return Fits(element, of_kind, args); }, codes);
}
void MultiplyCodedRows(Element element, const Codes& codes, const CodedProductArgs& args, Stream stream) {
  std::visit([&](const auto& of_kind) { Multiply(element, of_kind, args, stream); }, codes);
}

}  // namespace millrace::engine::cuda
