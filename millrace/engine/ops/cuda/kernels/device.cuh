// What all kernels use: element types, vectors of 16 bytes, sums over a block, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "millrace/engine/ops/cuda/kernels/arithmetic.h"
#include "millrace/engine/ops/cuda/kernels/divisor.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(Half x) { return __half2float(x); }
template <class T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 FromFloat<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ Half FromFloat<Half>(float x) {
  return __float2half_rn(x);
}

/// N consecutive elements, which one instruction loads or stores.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};
template <int N, class T>
__device__ __forceinline__ Pack<T, N> Load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void Store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
/// Makes the compiler forget what it computed from the vector. Otherwise it keeps converted elements, which take two or
/// three times as many registers, for a later use.
template <class T, int N>
__device__ __forceinline__ void Forget(Pack<T, N>& pack) {
  if constexpr (sizeof(T) < sizeof(float) && sizeof(pack) == sizeof(uint4)) {
    uint4& words = reinterpret_cast<uint4&>(pack);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
}
/// Elements in a vector of 16 bytes.
template <class T>
constexpr int kPack = 16 / sizeof(T);

/// Calls work(T{}) with the element type.
template <class Work>
void DispatchElement(Element element, Work&& work) {
  switch (element) {
    case Element::kFloat:
      return work(float{});
    case Element::kBfloat16:
      return work(Bf16{});
    case Element::kHalf:
      return work(Half{});
  }
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

/// Returns whether vectors of 16 bytes can be used: `columns` (and what else is a distance between them) is a multiple
/// of their elements, and all pointers are aligned. Null pointers are.
template <class T>
bool FitsPacks(std::int64_t columns, std::initializer_list<const void*> pointers) {
  return columns % kPack<T> == 0 && std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
           return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
         });
}

/// Calls work(T{}, Constant<N>{}) where N is kPack<T>, or 1 if vectors cannot be used.
template <class Work>
void DispatchPacks(Element element, std::int64_t columns, std::initializer_list<const void*> pointers, Work&& work) {
  DispatchElement(element, [&]<class T>(T value) {
    if (FitsPacks<T>(columns, pointers)) {
      work(value, Constant<kPack<T>>{});
    } else {
      work(value, Constant<1>{});
    }
  });
}

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// A kernel may start while the one before it on its stream still ends ("programmatic dependent launch", on GPUs of
// compute capability 9.0 and above). Between the short kernels of a generated token, the GPU then has no gaps.

/// Lets the next kernel start when all blocks of this one have called it.
__device__ __forceinline__ void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the kernels before this one have ended. Each block calls it before it touches what they write or read.
__device__ __forceinline__ void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The first thing that most kernels of Launch() do.
__device__ __forceinline__ void StartEarly() {
  LetNextStart();
  WaitForEarlier();
}

/// Returns the first digit of the compute capability of the current device.
inline int ComputeCapability() {
  int device = 0, major = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major;
}

/// Starts a kernel of blocks of threads. `early`: it may start while the kernel before it ends.
template <class... Parameters, class... Arguments>
void StartKernel(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream,
                 Arguments... arguments) {
  cudaLaunchAttribute starts_early{};
  starts_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  starts_early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &starts_early;
  config.numAttrs = early ? 1 : 0;
  Check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "starting a kernel");
}
/// Starts a kernel when those before it on the stream have ended.
template <class... Parameters, class... Arguments>
void Start(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, Arguments... arguments) {
  StartKernel(false, kernel, grid, block, stream, arguments...);
}
/// Starts a kernel that calls StartEarly(), or LetNextStart() and WaitForEarlier().
template <class... Parameters, class... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, Arguments... arguments) {
  constexpr int kFirstWithEarlyStarts = 9;
  StartKernel(ComputeCapability() >= kFirstWithEarlyStarts, kernel, grid, block, stream, arguments...);
}

/// Returns the number of multiprocessors of the current device.
inline int Multiprocessors() {
  int device = 0, count = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

/// Returns ceil(count / each), but at most `most`: kernels walk over the rest in a loop.
inline unsigned BlocksFor(std::int64_t count, std::int64_t each,
                          std::int64_t most = std::numeric_limits<std::int32_t>::max()) {
  return static_cast<unsigned>(std::min(most, (count + each - 1) / each));
}

inline std::int64_t RoundUp(std::int64_t x, std::int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kWarp = 32;

/// Combines a value of each of `lanes` neighbouring threads of a warp; a power of two.
template <class T, class Combine>
__device__ __forceinline__ T OverLanes(T value, int lanes, Combine combine) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Most {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Combines a value of each thread of row threadIdx.y, in a fixed order. Rows are either lanes of a warp, 2^n of them,
/// or there is one row of whole warps in a block. All threads of the block call it and get the result.
template <class T, class Combine>
__device__ __forceinline__ T OverRow(T value, Combine combine) {
  const int threads = static_cast<int>(blockDim.x);
  value = OverLanes(value, threads < kWarp ? threads : kWarp, combine);
  if (threads <= kWarp) return value;
  __shared__ T of_warps[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // the last call's readers are done
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  T result = of_warps[0];
  for (int i = 1; i < threads / kWarp; ++i) result = combine(result, of_warps[i]);
  return result;
}

}  // namespace millrace::engine::cuda
