#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "millrace/engine/ops/cuda/kernels/quantized_kernels.h"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
/// Elements of a thread, if rows and blocks of scales are multiples of it: 4 bytes of codes, which share a scale.
constexpr int kTogether = 8;

__device__ float Rounded(float x, float) { return x; }
__device__ __nv_bfloat16 Rounded(float x, __nv_bfloat16) { return __float2bfloat16(x); }
__device__ __half Rounded(float x, __half) { return __float2half(x); }

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
    out[i] = Rounded(number * ScaleOf(of, element / of.block), T());
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
      numbers[2 * byte] = Rounded(map[pair >> 4] * scale, T());
      numbers[2 * byte + 1] = Rounded(map[pair & 15] * scale, T());
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
    out[i] = Rounded(static_cast<float>(codes[element]) * scale, T());
  }
}

int BlocksFor(std::int64_t threads) {
  constexpr std::int64_t kMost = 132 * 16;
  return static_cast<int>(std::clamp<std::int64_t>((threads + kThreads - 1) / kThreads, 1, kMost));
}

template <class Work>
void ForType(Element type, Work&& work) {
  switch (type) {
    case Element::kFloat:
      return work(float());
    case Element::kBfloat16:
      return work(__nv_bfloat16());
    case Element::kHalf:
      return work(__half());
  }
}

void CheckStart() {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(std::string("dequantizing: ") + cudaGetErrorString(error));
}

}  // namespace

void DequantizeNf4(const Nf4Codes& codes, const CodedBox& box, Element type, void* out, Stream stream) {
  const std::int64_t all = box.rows * box.columns;
  if (all == 0) return;
  const bool together = (box.first | box.columns | box.row_stride | codes.block) % kTogether == 0 &&
                        reinterpret_cast<std::uintptr_t>(out) % sizeof(uint4) == 0;
  ForType(type, [&]<class T>(T) {
    if (together) {
      Nf4Eight<<<BlocksFor(all / kTogether), kThreads, 0, stream>>>(codes, box, static_cast<T*>(out));
    } else {
      Nf4One<<<BlocksFor(all), kThreads, 0, stream>>>(codes, box, static_cast<T*>(out));
    }
  });
  CheckStart();
}

void DequantizeInt8(const std::int8_t* codes, const float* scales, const CodedBox& box, Element type, void* out,
                    Stream stream) {
  const std::int64_t all = box.rows * box.columns;
  if (all == 0) return;
  ForType(type, [&]<class T>(T) {
    Int8One<<<BlocksFor(all), kThreads, 0, stream>>>(codes, scales, box, static_cast<T*>(out));
  });
  CheckStart();
}

}  // namespace millrace::engine::cuda
