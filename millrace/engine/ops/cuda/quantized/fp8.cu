#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"

#include <bit>

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

constexpr int kTile = kFp8Block;          // rows and columns of a block of threads
constexpr int kQuads = kTile / 4;         // of four rows, whose codes of one column are one word
constexpr int kColumnGroups = kTile / 8;  // of eight columns, which one load reads
constexpr int kPasses = 2;                // quads of a thread
constexpr int kBlocksAtOnce = 3;          // of a multiprocessor, at least, if registers suffice

/// The part of a matrix that a thread casts: of eight columns, four rows of each pass. A block of threads has a tile.
struct Part {
  std::int64_t first_row, first_column;  ///< of the tile
  std::int64_t column;                   ///< the first of eight
  int group;                             ///< of these columns in the tile
  int lane, warp;
  __device__ __forceinline__ int quad(int pass) const { return lane / kColumnGroups * 16 + pass * 8 + warp; }
  __device__ __forceinline__ std::int64_t row(int pass) const { return first_row + quad(pass) * 4; }
  __device__ __forceinline__ bool has(const Fp8Operand& of, int pass) const {
    return column < of.columns && row(pass) < of.rows;
  }
};
__device__ __forceinline__ Part PartOf(const Fp8Operand& of) {
  Part part{};
  const auto tiles_in_row = static_cast<unsigned>((of.columns + kTile - 1) / kTile);
  // From the end on: what FindLargest() has read last is still in the cache.
  const unsigned number = gridDim.x - 1 - blockIdx.x;
  part.first_row = std::int64_t{number / tiles_in_row} * kTile;
  part.first_column = std::int64_t{number % tiles_in_row} * kTile;
  part.lane = static_cast<int>(threadIdx.x) % kWarp;
  part.warp = static_cast<int>(threadIdx.x) / kWarp;
  part.group = part.lane % kColumnGroups;
  part.column = part.first_column + part.group * 8;
  return part;
}

/// The elements of a part. What lies outside the matrix is 0.
struct Elements {
  Pack<Bf16, 8> rows[kPasses][4];
};
__device__ __forceinline__ Elements LoadPart(const Fp8Operand& of, const Part& part) {
  Elements elements;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      elements.rows[pass][k] =
          part.has(of, pass) ? Load<8>(static_cast<const Bf16*>(of.x) + (part.row(pass) + k) * of.columns + part.column)
                             : Pack<Bf16, 8>{};
    }
  }
  return elements;
}

/// Words of four codes each, of one row.
struct Codes {
  std::uint32_t words[2];
};
/// Returns the codes of eight elements of a row, times `factor(column)`.
template <Fp8Format kFormat, class Factor>
__device__ __forceinline__ Codes CodesOf(const Pack<Bf16, 8>& pack, Factor&& factor) {
  Codes codes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto value = [&](int i) { return ToFloat(pack.values[4 * half + i]) * factor(4 * half + i); };
    const std::uint32_t low = ToFp8Pair<kFormat>(value(0), value(1));
    const std::uint32_t high = ToFp8Pair<kFormat>(value(2), value(3));
    codes.words[half] = low | high << 16;
  }
  return codes;
}

__device__ __forceinline__ void StoreCodes(const Fp8Operand& of, const Part& part, int pass, const Codes (&codes)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    *reinterpret_cast<uint2*>(of.codes + (part.row(pass) + k) * of.columns + part.column) =
        make_uint2(codes[k].words[0], codes[k].words[1]);
  }
}

/// Returns where the word of a column and of four rows is in shared memory. The exclusive or spreads the words that the
/// threads of a warp write, and those that they read, over all banks.
__device__ __forceinline__ int WordAt(int group, int column_of_group, int quad) {
  return (group * 8 + column_of_group) * kQuads + (quad ^ group);
}
using TransposedTile = std::uint32_t[kTile * kQuads];

/// Puts the codes of four rows into the tile.
__device__ __forceinline__ void PutTransposed(TransposedTile& tile, const Part& part, int pass,
                                              const Codes (&codes)[4]) {
  const int quad = part.quad(pass);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The transpose of 4 × 4 bytes.
    const std::uint32_t a = codes[0].words[half], b = codes[1].words[half], c = codes[2].words[half],
                        d = codes[3].words[half];
    const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    tile[WordAt(part.group, half * 4, quad)] = __byte_perm(ab_low, cd_low, 0x5410);
    tile[WordAt(part.group, half * 4 + 1, quad)] = __byte_perm(ab_low, cd_low, 0x7632);
    tile[WordAt(part.group, half * 4 + 2, quad)] = __byte_perm(ab_high, cd_high, 0x5410);
    tile[WordAt(part.group, half * 4 + 3, quad)] = __byte_perm(ab_high, cd_high, 0x7632);
  }
}
/// Writes the columns of the tile. All threads have put theirs.
__device__ __forceinline__ void StoreTransposed(const Fp8Operand& of, const Part& part, const TransposedTile& tile) {
  // Eight threads write the 128 rows of a column. A warp writes columns of four neighbouring groups.
  const int sixteen = part.lane % 8;
  const std::int64_t row = part.first_row + sixteen * 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int unit = part.warp * 4 + k, column_of_group = unit % 8, of_group = unit / 8 * 4 + part.lane / 8;
    const std::int64_t to = part.first_column + of_group * 8 + column_of_group;
    if (to >= of.columns || row >= of.rows) continue;
    const auto word = [&](int i) { return tile[WordAt(of_group, column_of_group, sixteen * 4 + i)]; };
    *reinterpret_cast<uint4*>(of.transposed + to * of.rows + row) = make_uint4(word(0), word(1), word(2), word(3));
  }
}

/// The bits of the largest absolute value of eight elements, in the upper half of a word as in a float.
__device__ __forceinline__ std::uint32_t MostOfPack(const Pack<Bf16, 8>& pack) {
  const auto words = std::bit_cast<uint4>(pack);
  const std::uint32_t most = MostOfHalves(words.x, MostOfHalves(words.y, MostOfHalves(words.z, words.w & 0x7fff7fff)));
  return MostBits{}(most << 16, most & 0xffff0000);
}
__device__ __forceinline__ std::uint32_t MostOfPart(const Elements& elements) {
  std::uint32_t most = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int k = 0; k < 4; ++k) most = MostBits{}(most, MostOfPack(elements.rows[pass][k]));
  }
  return most;
}
/// Infinite numbers become NaN, which a guessed scale must not hide.
__device__ __forceinline__ void MarkInfinite(Elements& elements) {
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (Bf16& value : elements.rows[pass][k].values) {
        if (fabsf(ToFloat(value)) == INFINITY) value = FromFloat<Bf16>(NAN);
      }
    }
  }
}

/// Writes a tile whose elements share the factor `encode`, and its transpose, as far as the operand wants them.
template <Fp8Format kFormat>
__device__ __forceinline__ void CastTile(const Fp8Operand& of, const Part& part, const Elements& elements, float encode,
                                         TransposedTile& tile) {
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    if (!part.has(of, pass)) continue;
    Codes codes[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      codes[k] = CodesOf<kFormat>(elements.rows[pass][k], [&](int) { return encode; });
    }
    if (of.codes != nullptr) StoreCodes(of, part, pass, codes);
    if (of.transposed != nullptr) PutTransposed(tile, part, pass, codes);
  }
  if (of.transposed == nullptr) return;
  __syncthreads();
  StoreTransposed(of, part, tile);
}

template <Fp8Format kFormat, bool kGuessed>
__global__ void __launch_bounds__(kThreads, kGuessed ? kBlocksAtOnce - 1 : kBlocksAtOnce)
    CastTensor(const Fp8Operand of, const Fp8TensorScale of_tensor) {
  __shared__ TransposedTile tile;
  const Fp8Scale scale = Fp8ScaleOf(kFormat, *of_tensor.largest);
  if (blockIdx.x == 0 && threadIdx.x == 0) *of_tensor.decode = scale.decode;
  const Part part = PartOf(of);
  Elements elements = LoadPart(of, part);
  if constexpr (kGuessed) {
    const std::uint32_t mine = MostOfPart(elements), most = OverRow(mine, MostBits{});
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<std::uint32_t*>(of_tensor.seen), most);
    constexpr std::uint32_t kInfinity = 0x7f800000;
    if (mine >= kInfinity) MarkInfinite(elements);
  }
  CastTile<kFormat>(of, part, elements, scale.encode, tile);
}

constexpr Fp8Format kOfBlocks = Fp8Format::kE4m3;

__global__ void __launch_bounds__(kThreads) CastLines(const Fp8Operand of, const Fp8LineScales scales) {
  __shared__ TransposedTile tile;
  __shared__ std::uint32_t most_of_columns[kTile];
  const Part part = PartOf(of);
  const Elements elements = LoadPart(of, part);
  if (of.codes != nullptr) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      Codes codes[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // Sixteen lanes have the columns of a row.
        const Pack<Bf16, 8>& row = elements.rows[pass][k];
        const std::uint32_t most = OverLanes(MostOfPack(row), kColumnGroups, MostBits{});
        const Fp8Scale scale = Fp8ScaleOf(kOfBlocks, std::bit_cast<float>(most));
        codes[k] = CodesOf<kOfBlocks>(row, [&](int) { return scale.encode; });
        if (part.group == 0 && part.has(of, pass)) {
          scales.decode[part.first_column / kTile * of.rows + part.row(pass) + k] = scale.decode;
        }
      }
      if (part.has(of, pass)) StoreCodes(of, part, pass, codes);
    }
  }
  if (of.transposed == nullptr) return;
  if (threadIdx.x < kTile) most_of_columns[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t most = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        most = MostBits{}(most, std::bit_cast<std::uint32_t>(fabsf(ToFloat(elements.rows[pass][k].values[i]))));
      }
    }
    most = MostBits{}(most, __shfl_xor_sync(kAllLanes, most, kColumnGroups));  // of the rows of the other half-warp
    if (part.lane < kColumnGroups) atomicMax(&most_of_columns[part.group * 8 + i], most);
  }
  __syncthreads();
  float encode[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const Fp8Scale scale = Fp8ScaleOf(kOfBlocks, std::bit_cast<float>(most_of_columns[part.group * 8 + i]));
    encode[i] = scale.encode;
    const bool writes = part.warp == 0 && part.lane < kColumnGroups && part.column < of.columns;
    if (writes) scales.decode_transposed[part.first_row / kTile * of.columns + part.column + i] = scale.decode;
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    Codes codes[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      codes[k] = CodesOf<kOfBlocks>(elements.rows[pass][k], [&](int i) { return encode[i]; });
    }
    PutTransposed(tile, part, pass, codes);
  }
  __syncthreads();
  StoreTransposed(of, part, tile);
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    CastSquares(const Fp8Operand of, const Fp8SquareScales scales) {
  __shared__ TransposedTile tile;
  const Part part = PartOf(of);
  const Elements elements = LoadPart(of, part);
  const std::uint32_t most = OverRow(MostOfPart(elements), MostBits{});
  const Fp8Scale scale = Fp8ScaleOf(kOfBlocks, std::bit_cast<float>(most));
  if (threadIdx.x == 0) {
    const std::int64_t row = part.first_row / kTile, column = part.first_column / kTile;
    if (of.codes != nullptr) scales.decode[row * Fp8SquareStride(of.columns) + column] = scale.decode;
    if (of.transposed != nullptr) scales.decode_transposed[column * Fp8SquareStride(of.rows) + row] = scale.decode;
  }
  CastTile<kOfBlocks>(of, part, elements, scale.encode, tile);
}

/// Returns the tiles of a matrix.
unsigned TilesOf(const Fp8Operand& of) {
  return static_cast<unsigned>((of.rows + kTile - 1) / kTile * ((of.columns + kTile - 1) / kTile));
}

}  // namespace

void FindLargest(const void* x, std::int64_t count, float* largest, Stream stream) {
  Check(cudaMemsetAsync(largest, 0, sizeof(float), stream), "cudaMemsetAsync");
  if (count == 0) return;
  const std::int64_t packs = count / 8;
  const unsigned blocks = BlocksFor(packs, kThreads * kLoads, std::int64_t{8} * Multiprocessors());
  Start(LargestOfBlocks, blocks, kThreads, stream, static_cast<const uint4*>(x), packs,
        reinterpret_cast<std::uint32_t*>(largest));
}

void CastToFp8(Fp8Format format, const Fp8Operand& of, const Fp8TensorScale& scale, Stream stream) {
  if (of.rows == 0 || of.columns == 0) return;
  const auto start = [&]<Fp8Format kFormat>() {
    if (scale.seen != nullptr) {
      Start(CastTensor<kFormat, true>, TilesOf(of), kThreads, stream, of, scale);
    } else {
      Start(CastTensor<kFormat, false>, TilesOf(of), kThreads, stream, of, scale);
    }
  };
  if (format == Fp8Format::kE4m3) {
    start.template operator()<Fp8Format::kE4m3>();
  } else {
    start.template operator()<Fp8Format::kE5m2>();
  }
}

void CastLinesToFp8(const Fp8Operand& of, const Fp8LineScales& scales, Stream stream) {
  if (of.rows == 0 || of.columns == 0) return;
  Start(CastLines, TilesOf(of), kThreads, stream, of, scales);
}

void CastSquaresToFp8(const Fp8Operand& of, const Fp8SquareScales& scales, Stream stream) {
  if (of.rows == 0 || of.columns == 0) return;
  Start(CastSquares, TilesOf(of), kThreads, stream, of, scales);
}

}  // namespace millrace::engine::cuda
