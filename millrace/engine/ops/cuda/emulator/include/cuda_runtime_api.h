// The part of CUDA's language and runtime that kernels here use, for a C++ compiler without CUDA: see ../README.md. The
// names are CUDA's; what they do is described in NVIDIA's CUDA C++ Programming Guide.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Blocks run one after the other, so all share the same memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
#define __shared__ static  // with room around each array, which nothing may touch
#else
#define __shared__ static __attribute__((noinit))  // in sections that the emulator fills; templates ignore section()
#endif

struct uint2 {
  alignas(8) unsigned x;
  unsigned y;
};
struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  alignas(16) unsigned x;
  unsigned y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned columns = 1, unsigned rows = 1, unsigned layers = 1)  // NOLINT(google-explicit-constructor)
      : x(columns), y(rows), z(layers) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// The place of the thread that runs in its block, and of its block in the grid.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace millrace::engine::cuda::emulator {

/// The place in the source at which a thread waits.
struct WaitPoint {
  const char* file = nullptr;
  int line = 0;
  bool operator==(const WaitPoint&) const = default;
};
/// Returns when all threads of the block that have not ended wait at the same place.
void WaitForBlock(WaitPoint place);
/// Returns when all lanes of the warp wait at the same place.
void WaitForWarp(WaitPoint place);
/// Returns the bits that lane (own ^ lane_mask) of the warp gives at the same place.
std::uint64_t ExchangeInWarp(unsigned lanes, std::uint64_t bits, int lane_mask, WaitPoint place);
/// Runs a kernel. Returns whether a GPU would start it.
bool Run(dim3 grid, dim3 block, const std::function<void()>& kernel);

}  // namespace millrace::engine::cuda::emulator

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  millrace::engine::cuda::emulator::WaitForBlock({file, line});
}
inline void __syncwarp(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  millrace::engine::cuda::emulator::WaitForWarp({file, line});
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int lane_mask, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = millrace::engine::cuda::emulator::ExchangeInWarp(lanes, bits, lane_mask, {file, line});
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const std::atomic_ref<unsigned> there(*at);
  unsigned before = there.load(std::memory_order_relaxed);
  while (!there.compare_exchange_weak(before, std::max(before, value), std::memory_order_relaxed)) {
  }
  return before;
}

/// Byte i of the result is byte (selector >> 4i & 7) of the eight bytes of low and high.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
/// The larger ones of the halves of two words.
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffff, b & 0xffff) | std::max(a & 0xffff0000U, b & 0xffff0000U);
}
inline float __expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}

enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
using cudaStream_t = struct CUstream_st*;
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount };
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
const char* cudaGetErrorString(cudaError_t error);

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
  const cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Parameters... arguments) {
  const bool runs =
      millrace::engine::cuda::emulator::Run(config->gridDim, config->blockDim, [&] { kernel(arguments...); });
  return runs ? cudaSuccess : cudaErrorInvalidConfiguration;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, std::size_t) {
  constexpr int kBlocks = 2;  // any number is allowed
  *blocks = kBlocks;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
