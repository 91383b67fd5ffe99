#include "millrace/engine/ops/cuda/fp8/fp8_kernels.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // of a thread in flight: fewer do not reach the bandwidth of memory

/// Bits of positive numbers have the order of the numbers, and those of NaN are above infinity's.
struct MostBits {
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

/// The largest of each half of two words.
__device__ __forceinline__ std::uint32_t MostOfHalves(std::uint32_t word, std::uint32_t most) {
  return __vmaxu2(word & 0x7fff7fff, most);
}

__global__ void __launch_bounds__(kThreads)
    LargestOfBlocks(const uint4* x, std::int64_t packs, std::uint32_t* largest) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::uint32_t most = 0;
  const auto add = [&](const uint4& pack) {
    most = MostOfHalves(pack.x, most);
    most = MostOfHalves(pack.y, most);
    most = MostOfHalves(pack.z, most);
    most = MostOfHalves(pack.w, most);
  };
  for (; i + (kLoads - 1) * step < packs; i += kLoads * step) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = x[i + k * step];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) add(loaded[k]);
  }
  for (; i < packs; i += step) add(x[i]);
  most = OverRow(MostBits{}(most & 0xffff, most >> 16), MostBits{});
  // The maximum does not depend on the order of blocks.
  if (threadIdx.x == 0) atomicMax(largest, most << 16);
}

constexpr int kTile = 128;                // rows and columns of a block
constexpr int kQuads = kTile / 4;         // of four rows, whose codes of one column are one word
constexpr int kColumnGroups = kTile / 8;  // of eight columns, which one load reads

/// Returns where the word of a column and of four rows is in shared memory. The exclusive or spreads the words that the
/// threads of a warp write, and those that they read, over all banks.
__device__ __forceinline__ int WordAt(int group, int column_of_group, int quad) {
  return (group * 8 + column_of_group) * kQuads + (quad ^ group);
}

/// Words of four codes each, of one row.
struct Codes {
  std::uint32_t words[2];
};

template <Fp8Format kFormat>
__device__ __forceinline__ Codes CodesOf(const Pack<Bf16, 8>& pack, float factor) {
  Codes codes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Bf16* const values = pack.values + 4 * half;
    const std::uint32_t low = ToFp8Pair<kFormat>(ToFloat(values[0]) * factor, ToFloat(values[1]) * factor);
    const std::uint32_t high = ToFp8Pair<kFormat>(ToFloat(values[2]) * factor, ToFloat(values[3]) * factor);
    codes.words[half] = low | high << 16;
  }
  return codes;
}

template <Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads) Cast(const Fp8CastArgs args) {
  __shared__ std::uint32_t tile[kTile * kQuads];
  const Fp8Scale scale = Fp8ScaleOf(kFormat, args.scale->largest);
  if (blockIdx.x == 0 && threadIdx.x == 0) args.scale->decode = scale.decode;
  const auto tiles_in_row = static_cast<unsigned>((args.columns + kTile - 1) / kTile);
  // From the end on: what FindLargest() has read last is still in the cache.
  const unsigned number = gridDim.x - 1 - blockIdx.x;
  const std::int64_t first_row = std::int64_t{number / tiles_in_row} * kTile,
                     first_column = std::int64_t{number % tiles_in_row} * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto* const x = static_cast<const Bf16*>(args.x);

  const int group = lane % kColumnGroups;
  const std::int64_t column = first_column + group * 8;
  constexpr int kPasses = 2;  // a thread has two quads
  const auto quad_of = [&](int pass) { return lane / kColumnGroups * 16 + pass * 8 + warp; };
  Pack<Bf16, 8> loaded[kPasses][4];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::int64_t row = first_row + quad_of(pass) * 4;
    if (column >= args.columns || row >= args.rows) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) loaded[pass][k] = Load<8>(x + (row + k) * args.columns + column);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int quad = quad_of(pass);
    const std::int64_t row = first_row + quad * 4;
    if (column >= args.columns || row >= args.rows) continue;
    Codes codes[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      codes[k] = CodesOf<kFormat>(loaded[pass][k], scale.encode);
      if (args.codes != nullptr) {
        *reinterpret_cast<uint2*>(args.codes + (row + k) * args.columns + column) =
            make_uint2(codes[k].words[0], codes[k].words[1]);
      }
    }
    if (args.transposed == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The transpose of 4 × 4 bytes.
      const std::uint32_t a = codes[0].words[half], b = codes[1].words[half], c = codes[2].words[half],
                          d = codes[3].words[half];
      const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
      const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
      tile[WordAt(group, half * 4, quad)] = __byte_perm(ab_low, cd_low, 0x5410);
      tile[WordAt(group, half * 4 + 1, quad)] = __byte_perm(ab_low, cd_low, 0x7632);
      tile[WordAt(group, half * 4 + 2, quad)] = __byte_perm(ab_high, cd_high, 0x5410);
      tile[WordAt(group, half * 4 + 3, quad)] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }
  if (args.transposed == nullptr) return;
  __syncthreads();
  // Eight threads write the 128 rows of a column. A warp writes columns of four neighbouring groups.
  const int sixteen = lane % 8;
  const std::int64_t row = first_row + sixteen * 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int unit = warp * 4 + k, column_of_group = unit % 8, of_group = unit / 8 * 4 + lane / 8;
    const std::int64_t to = first_column + of_group * 8 + column_of_group;
    if (to >= args.columns || row >= args.rows) continue;
    const auto word = [&](int i) { return tile[WordAt(of_group, column_of_group, sixteen * 4 + i)]; };
    *reinterpret_cast<uint4*>(args.transposed + to * args.rows + row) = make_uint4(word(0), word(1), word(2), word(3));
  }
}

}  // namespace

void FindLargest(const void* x, std::int64_t count, Fp8ScaleMemory* scale, Stream stream) {
  Check(cudaMemsetAsync(&scale->largest, 0, sizeof(float), stream), "cudaMemsetAsync");
  if (count == 0) return;
  const std::int64_t packs = count / 8;
  const unsigned blocks = BlocksFor(packs, kThreads * kLoads, std::int64_t{8} * Multiprocessors());
  Start(LargestOfBlocks, blocks, kThreads, stream, static_cast<const uint4*>(x), packs,
        reinterpret_cast<std::uint32_t*>(&scale->largest));
}

void CastToFp8(Fp8Format format, const Fp8CastArgs& args, Stream stream) {
  if (args.rows == 0 || args.columns == 0) return;
  const auto blocks = static_cast<unsigned>((args.rows + kTile - 1) / kTile * ((args.columns + kTile - 1) / kTile));
  if (format == Fp8Format::kE4m3) {
    Start(Cast<Fp8Format::kE4m3>, blocks, kThreads, stream, args);
  } else {
    Start(Cast<Fp8Format::kE5m2>, blocks, kThreads, stream, args);
  }
}

}  // namespace millrace::engine::cuda
