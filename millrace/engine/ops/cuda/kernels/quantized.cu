#include "millrace/engine/ops/cuda/kernels/quantized_kernels.h"

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
/// Elements of a thread, if rows and blocks of scales are multiples of it: 4 bytes of codes, which share a scale.
constexpr int kTogether = 8;

__device__ float ScaleOf(const Nf4Codes& of, std::int64_t block) {
  if (of.plain_scales != nullptr) return of.plain_scales[block];
  // A product and a sum, each rounded, as on the CPU.
  return __fadd_rn(__fmul_rn(of.scale_map[of.scales[block]], of.scale_scales[block / of.scale_block]), of.scale_offset);
}

template <class T>
__global__ void Nf4One(Nf4Codes of, CodedBox box, T* out) {
  const std::int64_t all = box.rows * box.columns, stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t element = box.first + i / box.columns * box.row_stride + i % box.columns;
    const int byte = of.codes[element / 2];
    const float number = of.map[element % 2 == 0 ? byte >> 4 : byte & 15];
    out[i] = FromFloat<T>(number * ScaleOf(of, element / of.block));
  }
}

/// REQUIRES: box.first, columns, row_stride and the block are multiples of kTogether, and `out` is aligned to 16 bytes.
template <class T>
__global__ void Nf4Eight(Nf4Codes of, CodedBox box, T* out) {
  __shared__ float map[16];
  if (threadIdx.x < 16) map[threadIdx.x] = of.map[threadIdx.x];
  __syncthreads();
  const std::int64_t per_row = box.columns / kTogether, all = box.rows * per_row;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t element = box.first + i / per_row * box.row_stride + i % per_row * kTogether;
    const float scale = ScaleOf(of, element / of.block);
    const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(of.codes + element / 2);
    alignas(16) T numbers[kTogether];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const std::uint32_t pair = codes >> (8 * byte) & 255;
      numbers[2 * byte] = FromFloat<T>(map[pair >> 4] * scale);
      numbers[2 * byte + 1] = FromFloat<T>(map[pair & 15] * scale);
    }
    constexpr int kVectors = kTogether * sizeof(T) / sizeof(uint4);
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      reinterpret_cast<uint4*>(out + i * kTogether)[vector] = reinterpret_cast<const uint4*>(numbers)[vector];
    }
  }
}

template <class T>
__global__ void Int8One(const std::int8_t* codes, const float* scales, CodedBox box, T* out) {
  const std::int64_t all = box.rows * box.columns, stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < all; i += stride) {
    const std::int64_t element = box.first + i / box.columns * box.row_stride + i % box.columns;
    const float scale = __fmul_rn(scales[element / box.row_stride], 1.0F / 127);
    out[i] = FromFloat<T>(static_cast<float>(codes[element]) * scale);
  }
}

unsigned BlocksOf(std::int64_t threads) {
  constexpr std::int64_t kMost = 132 * 16;
  return BlocksFor(threads, kThreads, kMost);
}

}  // namespace

void DequantizeNf4(const Nf4Codes& codes, const CodedBox& box, Element type, void* out, Stream stream) {
  const std::int64_t all = box.rows * box.columns;
  if (all == 0) return;
  const bool together = (box.first | box.columns | box.row_stride | codes.block) % kTogether == 0 &&
                        reinterpret_cast<std::uintptr_t>(out) % sizeof(uint4) == 0;
  DispatchElement(type, [&]<class T>(T) {
    if (together) {
      Start(Nf4Eight<T>, BlocksOf(all / kTogether), kThreads, stream, codes, box, static_cast<T*>(out));
    } else {
      Start(Nf4One<T>, BlocksOf(all), kThreads, stream, codes, box, static_cast<T*>(out));
    }
  });
}

void DequantizeInt8(const std::int8_t* codes, const float* scales, const CodedBox& box, Element type, void* out,
                    Stream stream) {
  const std::int64_t all = box.rows * box.columns;
  if (all == 0) return;
  DispatchElement(type, [&]<class T>(T) {
    Start(Int8One<T>, BlocksOf(all), kThreads, stream, codes, scales, box, static_cast<T*>(out));
  });
}

}  // namespace millrace::engine::cuda
