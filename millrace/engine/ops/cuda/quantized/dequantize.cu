// Writes the numbers of codes.
#include "millrace/engine/ops/cuda/quantized/codes.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float ScaleOf(const Nf4Codes& of, std::int64_t block) {
  if (of.plain_scales != nullptr) return of.plain_scales[block];
  return Nf4Scale(of, of.scale_map[of.scales[block]], of.scale_scales[block / of.scale_block]);
}
__device__ float Number(const Nf4Codes& of, std::int64_t element, std::int64_t) {
  const int byte = of.codes[element / 2];
  return of.map[element % 2 == 0 ? byte >> 4 : byte & 15] * ScaleOf(of, element / of.block);
}
template <class Kind>
__device__ float Number(const Kind& of, std::int64_t element, std::int64_t row) {
  float numbers[kNumbers];
  ByteNumbers(of, static_cast<std::uint8_t>(of.codes[element]), 0, numbers);
  return numbers[0] * ByteScale(of, row);
}

/// Returns whether kNumbers elements always share a scale and can be read at once.
bool FitsTogether(const Nf4Codes& of, const CodedBox& box) {
  return (box.first | box.columns | box.row_stride | of.block) % kNumbers == 0;
}
template <class Kind>
bool FitsTogether(const Kind&, const CodedBox& box) {
  return (box.first | box.columns | box.row_stride) % kNumbers == 0;
}
/// Make kNumbers elements. `map`: that of NF4, in shared memory.
__device__ void Numbers(const Nf4Codes& of, std::int64_t element, std::int64_t, const float* map,
                        float (&numbers)[kNumbers]) {
  const float scale = ScaleOf(of, element / of.block);
  Nf4Numbers(*reinterpret_cast<const unsigned*>(of.codes + element / 2), map, numbers);
#pragma unroll
  for (float& number : numbers) number *= scale;
}
template <class Kind>
__device__ void Numbers(const Kind& of, std::int64_t element, std::int64_t row, const float*,
                        float (&numbers)[kNumbers]) {
  const float scale = ByteScale(of, row);
  const uint2 words = *reinterpret_cast<const uint2*>(of.codes + element);
  ByteNumbers(of, words.x, words.y, numbers);
#pragma unroll
  for (float& number : numbers) number *= scale;
}

__device__ void FillMap(const Nf4Codes& of, float (&map)[16]) {
  if (threadIdx.x < 16) map[threadIdx.x] = of.map[threadIdx.x];
  __syncthreads();
}
template <class Kind>
__device__ void FillMap(const Kind&, float (&)[16]) {}

/// One element a thread and turn.
template <class T, class Kind>
__global__ void OneKernel(Kind of, CodedBox box, T* out) {
  const std::int64_t all = box.rows * box.columns, stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t element = box.first + i / box.columns * box.row_stride + i % box.columns;
    out[i] = FromFloat<T>(Number(of, element, element / box.row_stride));
  }
}

/// kNumbers elements a thread and turn. REQUIRES: FitsTogether(), and `out` begins at a vector.
template <class T, class Kind>
__global__ void TogetherKernel(Kind of, CodedBox box, T* out) {
  __shared__ float map[16];
  FillMap(of, map);
  const std::int64_t per_row = box.columns / kNumbers, all = box.rows * per_row;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t element = box.first + i / per_row * box.row_stride + i % per_row * kNumbers;
    float numbers[kNumbers];
    Numbers(of, element, element / box.row_stride, map, numbers);
#pragma unroll
    for (int first = 0; first < kNumbers; first += kPack<T>) {
      Pack<T, kPack<T>> pack;
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) pack.values[k] = FromFloat<T>(numbers[first + k]);
      Store(out + i * kNumbers + first, pack);
    }
  }
}

template <class Kind>
void StartDequantize(const Kind& codes, const CodedBox& box, Element type, void* out, Stream stream) {
  const std::int64_t all = box.rows * box.columns;
  if (all == 0) return;
  constexpr std::int64_t kMaxBlocks = 132 * 16;
  const bool together = FitsTogether(codes, box) && BeginsAtVector(out);
  const unsigned blocks = BlocksFor(together ? all / kNumbers : all, kThreads, kMaxBlocks);
  DispatchElement(type, [&]<class T>(T) {
    const auto kernel = together ? TogetherKernel<T, Kind> : OneKernel<T, Kind>;
    Start(kernel, blocks, kThreads, stream, codes, box, static_cast<T*>(out));
  });
}

}  // namespace

void Dequantize(const Codes& codes, const CodedBox& box, Element type, void* out, Stream stream) {
  std::visit([&](const auto& of_kind) { StartDequantize(of_kind, box, type, out, stream); }, codes);
}

}  // namespace millrace::engine::cuda
