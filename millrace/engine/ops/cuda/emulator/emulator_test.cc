// The emulator itself: that it finds the mistakes it is there for.
#include "millrace/engine/ops/cuda/emulator/emulator.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace millrace::engine::cuda::emulator {
namespace {

constexpr int kThreads = 64;

__global__ void SumOfBlock(const float* x, float* out) {
  const float sum = OverRow(x[blockIdx.x * blockDim.x + threadIdx.x], Sum());
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST(Emulator, ThreadsOfABlockExchange) {
  const Numbers x = Random(3 * kThreads, 1, 1);
  const Numbers sums = InEveryOrder([&] {
    Numbers out(3);
    Start(SumOfBlock, 3, kThreads, nullptr, x.data(), out.data());
    return out;
  });
  for (int block = 0; block < 3; ++block) {
    float sum = 0;
    for (int i = 0; i < kThreads; ++i) sum += x[block * kThreads + i];
    EXPECT_NEAR(sums[block], sum, 1e-5);
  }
}

/// Each thread reads what its neighbour wrote; with `waits`, after all have written.
__global__ void FromNeighbour(float* out, bool waits) {
  __shared__ float written[kThreads];
  written[threadIdx.x] = static_cast<float>(threadIdx.x + 1);
  if (waits) __syncthreads();
  out[threadIdx.x] = written[threadIdx.x ^ 1];
  __syncthreads();
  written[threadIdx.x] = 0;
}

#if defined(__SANITIZE_THREAD__)
/// Each lane reads what another one writes after both have exchanged something; with `waits`, after a barrier of the
/// warp.
__global__ void WritesWhatOthersRead(float* out, bool waits) {
  __shared__ float value;
  if (threadIdx.x == 0) value = 1;
  __syncthreads();
  const float read = value;
  out[threadIdx.x] = __shfl_xor_sync(kAllLanes, read, 1);
  if (waits) __syncwarp();
  if (threadIdx.x == 0) value = 2;
}

TEST(Emulator, RacesEndTheTest) {
  Numbers out(kThreads);
  Start(FromNeighbour, 1, kThreads, nullptr, out.data(), true);
  EXPECT_DEATH(Start(FromNeighbour, 1, kThreads, nullptr, out.data(), false), "data race");
  Start(WritesWhatOthersRead, 1, kWarp, nullptr, out.data(), true);
  EXPECT_DEATH(Start(WritesWhatOthersRead, 1, kWarp, nullptr, out.data(), false), "data race");
}
#else
TEST(Emulator, AMissingBarrierDependsOnTheOrder) {
  const auto run = [](Order order, bool waits) {
    Use({.order = order});
    Numbers out(kThreads);
    Start(FromNeighbour, 1, kThreads, nullptr, out.data(), waits);
    Use({});
    return out;
  };
  EXPECT_EQ(run(Order::kForward, true), run(Order::kBackward, true));
  EXPECT_NE(run(Order::kForward, false), run(Order::kBackward, false));
}
#endif

#if !defined(__SANITIZE_ADDRESS__)
__device__ void ReadOwnAndAnother(float (&of_block)[2], float* out) {
  if (blockIdx.x == 0) of_block[0] = 1;
  out[2 * blockIdx.x] = of_block[0];
  out[2 * blockIdx.x + 1] = of_block[1];
}
__global__ void ReadsItsOwnAndAnother(float* out) {
  __shared__ float of_block[2];
  ReadOwnAndAnother(of_block, out);
}
template <class T>
__global__ void TemplateReadsItsOwnAndAnother(T* out) {
  __shared__ T of_block[2];
  ReadOwnAndAnother(of_block, out);
}

TEST(Emulator, SharedMemoryIsNoNumberUntilItIsWritten) {
  for (const auto kernel : {ReadsItsOwnAndAnother, TemplateReadsItsOwnAndAnother<float>}) {
    Numbers out(4);
    Start(kernel, 2, 1, nullptr, out.data());
    EXPECT_EQ(out[0], 1);
    for (const int i : {1, 2, 3}) EXPECT_TRUE(std::isnan(out[static_cast<std::size_t>(i)])) << i;
  }
}
#endif

#if !defined(__SANITIZE_THREAD__)  // to which threads that are given up never end
__global__ void HalfWaits(bool ends) {
  if (threadIdx.x < kThreads / 2) {
    __syncthreads();
  } else if (!ends) {
    __syncthreads();
  }
}
__global__ void PartOfAWarpExchanges(float* out) {
  if (threadIdx.x % kWarp < 3) *out = __shfl_xor_sync(kAllLanes, 1.0F, 1);
}

TEST(Emulator, ThreadsThatWaitAtDifferentPlacesAreNamed) {
  const auto message = [](auto&& work) {
    try {
      work();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message([] { Start(HalfWaits, 1, kThreads, nullptr, false); }),
              testing::ContainsRegex("from thread 0 block at .*emulator_test.cc:.*, from thread 32 block at"));
  EXPECT_EQ(message([] { Start(HalfWaits, 1, kThreads, nullptr, true); }), "");
  float out = 0;
  EXPECT_THAT(message([&] { Start(PartOfAWarpExchanges, 1, kThreads, nullptr, &out); }),
              testing::ContainsRegex("from thread 0 warp at .*, from thread 3 ended, from thread 32 warp"));
}
#endif

__global__ void Nothing() {}

TEST(Emulator, RefusesWhatAGpuDoes) {
  EXPECT_NO_THROW(Start(Nothing, dim3(1, 65'535), 1, nullptr));
  EXPECT_THROW(Start(Nothing, dim3(1, 65'536), 1, nullptr), std::runtime_error);
  EXPECT_THROW(Start(Nothing, 1, 1025, nullptr), std::runtime_error);
  EXPECT_THROW(Start(Nothing, 0, 32, nullptr), std::runtime_error);
}

TEST(Emulator, HasCudasIntrinsics) {
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x5140), 0x55114400U);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7362), 0x77336622U);
  EXPECT_EQ(__vmaxu2(0x00017fff, 0x00028000), 0x00028000U);
}

/// Every number of 16 bits is the rounding of itself, and numbers between two are rounded to the nearer one.
TEST(Emulator, RoundsToFloat16) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto code = static_cast<std::uint16_t>(bits), next = static_cast<std::uint16_t>(bits + 1);
    const float value = __half2float({code});
    ASSERT_EQ(__float2half_rn(value).bits, code) << value;
    ASSERT_EQ(__float2half_rn(-value).bits, code | 0x8000) << value;
    if (next == 0x7c00) continue;
    const float middle = (value + __half2float({next})) / 2;
    ASSERT_EQ(__float2half_rn(middle).bits, bits % 2 == 0 ? code : next) << middle;
    ASSERT_EQ(__float2half_rn(std::nextafter(middle, 0.0F)).bits, code) << middle;
    ASSERT_EQ(__float2half_rn(std::nextafter(middle, 1e6F)).bits, next) << middle;
  }
  EXPECT_EQ(__float2half_rn(65504).bits, 0x7bff);
  EXPECT_EQ(__float2half_rn(65519.99F).bits, 0x7bff);
  EXPECT_EQ(__float2half_rn(65520).bits, 0x7c00);
  EXPECT_EQ(__float2half_rn(-INFINITY).bits, 0xfc00);
  EXPECT_TRUE(std::isnan(__half2float(__float2half_rn(NAN))));
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
