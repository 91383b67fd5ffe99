// Products of tens of rows with codes, by tensor cores. A block of threads makes the numbers of a tile of codes in
// shared memory, and multiplies all rows with them: so codes are read from memory, and numbers never.
#include <mma.h>

#include "millrace/engine/ops/cuda/quantized/codes.cuh"

namespace millrace::engine::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCore = 16;  ///< rows, columns and summed elements of a product of tensor cores
/// Outputs of a tile: a core's for each warp. Elements of each that a tile has.
constexpr int kTileOutputs = kWarps * kCore, kTileInner = 128;
/// From one line of a tile to the next. Lines begin 16 bytes further on in the banks of shared memory than the one
/// before, so that cores read eight of them at once.
constexpr int kLine = kTileInner + 8;
constexpr int kSumLine = kTileOutputs + 4;  ///< the same, for sums
/// Returns the blocks that a multiprocessor has at once, at least: their loads are under way at the same time.
constexpr int BlocksAtOnce(int rows) { return rows == kTileRows ? 3 : 4; }
/// Sums are in the memory of the tile of codes when that is no longer used.
static_assert(kTileRows * kSumLine * sizeof(float) <= kTileOutputs * kLine * sizeof(Half));

/// Blocks of threads that share the elements of some outputs: a GPU has enough of them to be busy.
struct Splits {
  std::int64_t steps = 0;  ///< tiles of each
  std::int64_t count = 0;
};
Splits SplitsOf(const CodedProductArgs& args) {
  constexpr std::int64_t kLeastSteps = 4;  // so that a block's start is no large part
  const std::int64_t tiles =
      (args.box.rows + kTileOutputs - 1) / kTileOutputs * ((args.rows + kTileRows - 1) / kTileRows);
  const std::int64_t all = std::max<std::int64_t>(1, (args.box.columns + kTileInner - 1) / kTileInner);
  const std::int64_t wanted =
      std::max<std::int64_t>(1, BlocksAtOnce(kTileRows) * Multiprocessors() / std::max<std::int64_t>(1, tiles));
  const std::int64_t steps = std::max((all + wanted - 1) / wanted, std::min(all, kLeastSteps));
  return {steps, (all + steps - 1) / steps};
}

/// A block makes kTileOutputs outputs of kRows rows, from `steps` tiles of the elements that are summed. blockIdx: of
/// outputs, of elements, of rows. Where there are several blocks for the same outputs, sums go to scratch
/// [gridDim.y, rows, outputs]. A thread loads its part of the next tiles before the cores multiply these.
template <class T, class Reader, int kRows>
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(kRows))
    CodedTilesKernel(CodedProductArgs a, Reader codes, int steps, float* scratch) {
  constexpr int N = Reader::kTogether, kX = kPack<T>;
  constexpr int kLineVectors = kTileInner / N, kVectors = kTileOutputs * kLineVectors / kThreads;
  constexpr int kLinePacks = kTileInner / kX, kPacks = kRows * kLinePacks / kThreads;
  __shared__ __align__(32) T of_codes[kTileOutputs * kLine];
  __shared__ __align__(32) T of_x[kRows * kLine];
  __shared__ typename Reader::Shared shared;
  LetNextStart();
  codes.Fill(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const int inputs = static_cast<int>(a.box.columns), outputs = static_cast<int>(a.box.rows);
  const int rows = static_cast<int>(a.rows);
  const int first_output = static_cast<int>(blockIdx.x) * kTileOutputs,
            first_row = static_cast<int>(blockIdx.z) * kRows;
  const int begin = static_cast<int>(blockIdx.y) * steps * kTileInner, end = min(begin + steps * kTileInner, inputs);
  typename Reader::Vector vectors[kVectors]{};
  Pack<T, kX> packs[kPacks]{};
  const auto load_codes = [&](int at) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int place = i * kThreads + thread, from = at + place % kLineVectors * N;
      if (from < end) vectors[i] = codes.Load(min(first_output + place / kLineVectors, outputs - 1), from);
    }
  };
  const auto load_x = [&](int at) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int place = i * kThreads + thread, row = first_row + place / kLinePacks,
                from = at + place % kLinePacks * kX;
      packs[i] = {};
      if (row < rows && from < end) packs[i] = Load<kX>(static_cast<const T*>(a.x) + row * a.x_stride + from);
    }
  };
  // Beyond the end, x is zero, and the vectors are those of the tiles before.
  const auto store = [&] {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int place = i * kThreads + thread, column = place % kLineVectors * N;
      T* const line = of_codes + place / kLineVectors * kLine + column;
      const float scale = codes.VectorScale(vectors[i], shared);
#pragma unroll
      for (int part = 0; part < N / kNumbers; ++part) {
        float numbers[kNumbers];
        codes.Numbers(vectors[i], part, shared, numbers);
        Pack<T, kNumbers> pack;
#pragma unroll
        for (int k = 0; k < kNumbers; ++k) pack.values[k] = FromFloat<T>(numbers[k] * scale);
        Store(line + part * kNumbers, pack);
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int place = i * kThreads + thread;
      Store(of_x + place / kLinePacks * kLine + place % kLinePacks * kX, packs[i]);
    }
  };
  load_codes(begin);  // codes are none of what earlier kernels write
  WaitForEarlier();
  load_x(begin);
  constexpr int kCores = kRows / kCore;
  wmma::fragment<wmma::accumulator, kCore, kCore, kCore, float> sums[kCores];
#pragma unroll
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0F);
  for (int at = begin; at < end; at += kTileInner) {
    __syncthreads();  // `shared` is filled, and the tiles before were read
    store();
    __syncthreads();
    if (at + kTileInner < end) {
      load_codes(at + kTileInner);
      load_x(at + kTileInner);
    }
#pragma unroll 2  // with more, operands that wait take the registers of loads
    for (int k = 0; k < kTileInner; k += kCore) {
      wmma::fragment<wmma::matrix_a, kCore, kCore, kCore, T, wmma::row_major> weight;
      wmma::load_matrix_sync(weight, of_codes + warp * kCore * kLine + k, kLine);
#pragma unroll
      for (int core = 0; core < kCores; ++core) {
        wmma::fragment<wmma::matrix_b, kCore, kCore, kCore, T, wmma::col_major> x;
        wmma::load_matrix_sync(x, of_x + core * kCore * kLine + k, kLine);
        wmma::mma_sync(sums[core], weight, x, sums[core]);
      }
    }
  }
  __syncthreads();
  auto* const of_sums = reinterpret_cast<float*>(of_codes);
#pragma unroll
  for (int core = 0; core < kCores; ++core) {
    wmma::store_matrix_sync(of_sums + core * kCore * kSumLine + warp * kCore, sums[core], kSumLine,
                            wmma::mem_col_major);
  }
  __syncthreads();
  for (int place = thread; place < kRows * kTileOutputs; place += kThreads) {
    const int row = first_row + place / kTileOutputs, output = first_output + place % kTileOutputs;
    if (row >= rows || output >= outputs) continue;
    const float sum = of_sums[place / kTileOutputs * kSumLine + place % kTileOutputs];
    if (gridDim.y > 1) {
      scratch[(static_cast<std::int64_t>(blockIdx.y) * rows + row) * outputs + output] = sum;
    } else {
      static_cast<T*>(a.out)[row * a.out_stride + output] = FinishSum<T>(sum, codes, a.bias, output);
    }
  }
}

/// Adds what the blocks for the same outputs have summed. A thread makes an output of a row.
template <class T, class Reader>
__global__ void __launch_bounds__(kThreads)
    AddSplitsKernel(CodedProductArgs a, Reader codes, int splits, const float* scratch) {
  StartEarly();
  const int outputs = static_cast<int>(a.box.rows), output = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const std::int64_t row = blockIdx.y;
  if (output >= outputs) return;
  float sum = 0;
  for (int split = 0; split < splits; ++split) sum += scratch[(split * a.rows + row) * outputs + output];
  static_cast<T*>(a.out)[row * a.out_stride + output] = FinishSum<T>(sum, codes, a.bias, output);
}

template <class T, class Reader, int kRows>
void StartTiles(const CodedProductArgs& args, const Reader& codes, const Splits& splits, float* scratch,
                Stream stream) {
  const dim3 grid(BlocksFor(args.box.rows, kTileOutputs), static_cast<unsigned>(splits.count),
                  BlocksFor(args.rows, kRows));
  Launch(CodedTilesKernel<T, Reader, kRows>, grid, kThreads, stream, args, codes, static_cast<int>(splits.steps),
         scratch);
}

template <class Kind>
bool Fits(Element element, const Kind& codes, const CodedProductArgs& args) {
  constexpr std::int64_t kMaxRows = 65'535;  // of a grid
  return element != Element::kFloat && args.rows >= 1 && args.rows <= kMaxRows && FitsReader<Half>(codes, args);
}

template <class Kind>
void Multiply(Element element, const Kind& codes, const CodedProductArgs& args, float* scratch, Stream stream) {
  using Reader = typename ReaderOf<Kind>::Type;
  if (args.box.rows == 0) return;
  const Reader reader(codes, args.box);
  const Splits splits = SplitsOf(args);
  DispatchElement(element, [&]<class T>(T) {
    if constexpr (sizeof(T) == sizeof(Half)) {
      if (args.rows <= kCore) {
        StartTiles<T, Reader, kCore>(args, reader, splits, scratch, stream);
      } else if (args.rows <= 2 * kCore) {
        StartTiles<T, Reader, 2 * kCore>(args, reader, splits, scratch, stream);
      } else {
        StartTiles<T, Reader, kTileRows>(args, reader, splits, scratch, stream);
      }
      if (splits.count == 1) return;
      const dim3 grid(BlocksFor(args.box.rows, kThreads), static_cast<unsigned>(args.rows));
      Launch(AddSplitsKernel<T, Reader>, grid, kThreads, stream, args, reader, static_cast<int>(splits.count), scratch);
    }
  });
}

}  // namespace

bool FitsCodedTiles(Element element, const Codes& codes, const CodedProductArgs& args) {
  return std::visit([&](const auto& of_kind) { return Fits(element, of_kind, args); }, codes);
}
std::int64_t CodedTilesScratch(const CodedProductArgs& args) {
  const std::int64_t splits = SplitsOf(args).count;
  return splits == 1 ? 0 : splits * args.rows * args.box.rows;
}
void MultiplyCodedTiles(Element element, const Codes& codes, const CodedProductArgs& args, float* scratch,
                        Stream stream) {
  std::visit([&](const auto& of_kind) { Multiply(element, of_kind, args, scratch, stream); }, codes);
}

}  // namespace millrace::engine::cuda
