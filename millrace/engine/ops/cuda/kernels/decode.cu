// Attention of few queries over many keys ("flash decoding": the keys of a head are divided among blocks, and a second
// kernel joins their results). A block reads keys and values once for all query heads that share them. Four
// threads compute the scores of a key; then groups of threads, each with a vector of the head's elements, add up the
// values. Blocks may be short, so that a short cache occupies the GPU, too.
#include <cfloat>

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = kWarp;               // that a block takes at a time
constexpr int kPerKey = kThreads / kKeys;  // threads that compute a score
constexpr int kMostDim = 256;
constexpr int kMostQueries = 8;  // of a block; more are divided among blocks, which read the keys again
constexpr std::int64_t kMostSplits = 256;

/// How queries and keys are divided among blocks.
struct Division {
  std::int64_t first_key;  ///< that any query sees
  std::int64_t shared;     ///< queries that share a key-value head, of all query heads
  std::int64_t groups, splits, split_keys;
};

Division DivisionOf(const DecodeArgs& args) {
  Division d{};
  if (args.causal && args.window > 0) {
    d.first_key = std::max<std::int64_t>(0, args.keys - args.queries - args.window + 1);
  }
  d.shared = args.heads / args.kv_heads * args.queries;
  d.groups = (d.shared + kMostQueries - 1) / kMostQueries;
  const std::int64_t blocks = args.rows * args.kv_heads * d.groups, keys = args.keys - d.first_key;
  const std::int64_t wanted = (Multiprocessors() * 8 + blocks - 1) / blocks;
  d.splits = std::clamp<std::int64_t>(std::min(wanted, (keys + kKeys - 1) / kKeys), 1, kMostSplits);
  d.split_keys = RoundUp((keys + d.splits - 1) / d.splits, kKeys);
  d.splits = (keys + d.split_keys - 1) / d.split_keys;
  return d;
}

/// What blocks leave for the join: of each split of each query, in this order, the weighted sum of values [dim]; then
/// of each split of each query the greatest score and the sum of exponentials.
struct Scratch {
  float *values, *sums;
};
__device__ __forceinline__ Scratch ScratchOf(const DecodeArgs& a, std::int64_t splits, std::int64_t query) {
  const std::int64_t queries = a.rows * a.queries * a.heads;
  return {a.scratch + query * splits * a.dim, a.scratch + (queries * a.dim + query * 2) * splits};
}

/// kQueries: the most queries of a block.
template <class T, int kQueries>
__global__ void __launch_bounds__(kThreads) DecodeSplits(DecodeArgs a, Division d) {
  constexpr int N = kPack<T>;
  const std::int64_t split = blockIdx.x, group = blockIdx.y;
  const std::int64_t row = blockIdx.z / a.kv_heads, kv_head = blockIdx.z % a.kv_heads;
  const std::int64_t first_query = group * kQueries;  // of those that share the head
  const int count = static_cast<int>(d.shared - first_query < kQueries ? d.shared - first_query : kQueries);
  const std::int64_t begin = d.first_key + split * d.split_keys;
  const std::int64_t end = begin + d.split_keys < a.keys ? begin + d.split_keys : a.keys;
  const int dim = static_cast<int>(a.dim), vectors = dim / N, thread = static_cast<int>(threadIdx.x);
  const auto* keys = static_cast<const T*>(a.k) + row * a.k_row + kv_head * a.k_head;
  const auto* values = static_cast<const T*>(a.v) + row * a.v_row + kv_head * a.v_head;
  // A query's head and number: those that share a key-value head lie head by head.
  const auto head_of = [&](int i) { return kv_head * (a.heads / a.kv_heads) + (first_query + i) / a.queries; };
  const auto query_of = [&](int i) { return (first_query + i) % a.queries; };

  __shared__ alignas(16) float queries[kQueries][kMostDim];
  __shared__ float weights[kQueries][kKeys];                            // of the keys of a step; before, their scores
  __shared__ float most[kQueries], sum[kQueries], kept[kQueries];       // of the keys so far
  __shared__ std::int64_t first_seen[kQueries], behind_seen[kQueries];  // the keys that a query sees
  const float scale = rsqrtf(static_cast<float>(dim));
  for (int i = 0; i < kQueries; ++i) {
    const T* q = static_cast<const T*>(a.q) + row * a.q_row;
    for (int at = thread; at < dim; at += kThreads) {
      queries[i][at] = i < count ? ToFloat(q[head_of(i) * a.q_head + query_of(i) * a.q_query + at]) * scale : 0;
    }
  }
  if (thread < kQueries) {
    const std::int64_t position = a.keys - a.queries + query_of(thread);
    most[thread] = -FLT_MAX;
    sum[thread] = 0;
    first_seen[thread] = a.causal && a.window > 0 ? position - a.window + 1 : 0;
    behind_seen[thread] = thread >= count ? 0 : a.causal ? position + 1 : a.keys;
  }
  float mixed[kQueries][N];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int k = 0; k < N; ++k) mixed[i][k] = 0;
  }
  // For the values, threads are lanes of vectors: vector `part` of keys `lane`, `lane` + lanes, …
  const int lanes = kThreads / vectors, lane = thread / vectors, part = thread % vectors;
  __syncthreads();
  for (std::int64_t base = begin; base < end; base += kKeys) {
    const std::int64_t key = base + thread / kPerKey;
    float scores[kQueries];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) scores[i] = 0;
    if (key < end) {
      const T* from = keys + key * a.k_key;
#pragma unroll 8
      for (int at = thread % kPerKey * N; at < dim; at += kPerKey * N) {
        const Pack<T, N> elements = Load<N>(from + at);
#pragma unroll
        for (int i = 0; i < kQueries; ++i) {
#pragma unroll
          for (int k = 0; k < N; ++k) scores[i] += ToFloat(elements.values[k]) * queries[i][at + k];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const float score = OverLanes(scores[i], kPerKey, Sum());
      const bool sees = key < end && key >= first_seen[i] && key < behind_seen[i];
      if (thread % kPerKey == 0) weights[i][thread / kPerKey] = sees ? score : -FLT_MAX;
    }
    __syncthreads();
    for (int i = thread / kWarp; i < kQueries; i += kThreads / kWarp) {  // a warp has a query, a lane a key
      const float score = weights[i][thread % kWarp];
      const float highest = fmaxf(most[i], OverLanes(score, kWarp, Most()));
      const float weight = score > -FLT_MAX ? __expf(score - highest) : 0;
      const float total = OverLanes(weight, kWarp, Sum());
      weights[i][thread % kWarp] = weight;
      if (thread % kWarp == 0) {
        kept[i] = __expf(most[i] - highest);
        sum[i] = sum[i] * kept[i] + total;
        most[i] = highest;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) mixed[i][k] *= kept[i];
    }
    const int rows = static_cast<int>(end - base < kKeys ? end - base : kKeys);
    if (lane < lanes) {
#pragma unroll 8
      for (int at = lane; at < rows; at += lanes) {
        const Pack<T, N> elements = Load<N>(values + (base + at) * a.v_key + part * N);
#pragma unroll
        for (int i = 0; i < kQueries; ++i) {
          const float weight = weights[i][at];
#pragma unroll
          for (int k = 0; k < N; ++k) mixed[i][k] += weight * ToFloat(elements.values[k]);
        }
      }
    }
    __syncthreads();
  }
  // The lanes' sums, in the order of lanes. `queries` is not needed any more.
  for (int turn = 0; turn < lanes; ++turn) {
    if (lane == turn) {
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          float& all = queries[i][part * N + k];
          all = turn == 0 ? mixed[i][k] : all + mixed[i][k];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    if (i >= count) break;
    const std::int64_t query = (row * a.queries + query_of(i)) * a.heads + head_of(i);
    const Scratch into = ScratchOf(a, d.splits, query);
    if (thread == 0) {
      into.sums[2 * split] = most[i];
      into.sums[2 * split + 1] = sum[i];
    }
    for (int at = thread; at < dim; at += kThreads) into.values[split * dim + at] = queries[i][at];
  }
}

constexpr int kJoinThreads = 256;

/// Joins the splits of a query of a head: blockIdx.x. Groups of threads, each with a vector of the head's elements,
/// take splits in turns.
template <class T>
__global__ void __launch_bounds__(kJoinThreads) JoinSplits(DecodeArgs a, int splits) {
  constexpr int kFour = 4;  // float32 elements in a vector of 16 bytes
  const std::int64_t query = blockIdx.x;
  const Scratch from = ScratchOf(a, splits, query);
  const int thread = static_cast<int>(threadIdx.x), dim = static_cast<int>(a.dim);
  const bool has_split = thread < splits;
  __shared__ float weights[kMostSplits];
  __shared__ float mixed[kJoinThreads][kFour];
  const float mine = has_split ? from.sums[2 * thread] : -FLT_MAX;
  const float most = OverRow(mine, Most());
  const float weight = has_split ? __expf(mine - most) : 0;
  if (has_split) weights[thread] = weight;
  const float sum = OverRow(has_split ? from.sums[2 * thread + 1] * weight : 0, Sum());
  const int vectors = dim / kFour, groups = kJoinThreads / vectors, group = thread / vectors, part = thread % vectors;
  float own[kFour] = {};
  if (group < groups) {
#pragma unroll 8
    for (int i = group; i < splits; i += groups) {
      const Pack<float, kFour> values = Load<kFour>(from.values + static_cast<std::int64_t>(i) * dim + part * kFour);
#pragma unroll
      for (int k = 0; k < kFour; ++k) own[k] += values.values[k] * weights[i];
    }
  }
#pragma unroll
  for (int k = 0; k < kFour; ++k) mixed[thread][k] = own[k];
  __syncthreads();
  for (int at = thread; at < dim; at += kJoinThreads) {
    float total = 0;
    for (int i = 0; i < groups; ++i) total += mixed[i * vectors + at / kFour][at % kFour];
    static_cast<T*>(a.out)[query * dim + at] = FromFloat<T>(total / sum);
  }
}

constexpr int kCopyThreads = 256;

/// blockIdx.y: 0 for keys, 1 for values.
template <class T, int N>
__global__ void __launch_bounds__(kCopyThreads) AppendKernel(AppendArgs a, std::int64_t vectors) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i >= vectors) return;
  const Quotient element = Divided(i, a.dim / N), token = Divided(element.quotient, a.count);
  const Quotient head = Divided(token.quotient, a.heads);
  const std::int64_t at = element.rest * N;
  const T* const from = static_cast<const T*>(blockIdx.y == 0 ? a.keys : a.values) + head.quotient * a.from_row +
                        head.rest * a.from_head + token.rest * a.from_token;
  T* const to = static_cast<T*>(blockIdx.y == 0 ? a.cached_keys : a.cached_values) +
                (head.quotient * a.heads + head.rest) * a.capacity * a.dim + (a.position + token.rest) * a.dim;
  Store(to + at, Load<N>(from + at));
}

/// Calls work(Constant<queries of a block>{}).
template <class Work>
void DispatchQueries(std::int64_t shared, Work&& work) {
  if (shared <= 1) return work(Constant<1>{});
  if (shared <= 2) return work(Constant<2>{});
  if (shared <= 4) return work(Constant<4>{});
  work(Constant<kMostQueries>{});
}

}  // namespace

bool FitsDecode(Element element, const DecodeArgs& args) {
  bool fits = false;
  DispatchElement(element, [&]<class T>(T) {
    const std::int64_t distances = args.dim | args.q_row | args.q_head | args.q_query | args.k_row | args.k_head |
                                   args.k_key | args.v_row | args.v_head | args.v_key;
    fits = args.dim > 0 && args.dim <= kMostDim && FitsPacks<T>(distances, {args.q, args.k, args.v});
  });
  return fits && args.rows * args.kv_heads <= 65'535;
}

std::int64_t DecodeScratch(const DecodeArgs& args) {
  if (args.rows * args.heads * args.queries == 0) return 0;
  return args.rows * args.heads * args.queries * DivisionOf(args).splits * (args.dim + 2);
}

void Decode(Element element, const DecodeArgs& args, Stream stream) {
  if (args.rows * args.heads * args.queries == 0) return;
  const Division division = DivisionOf(args);
  const dim3 grid(static_cast<unsigned>(division.splits), static_cast<unsigned>(division.groups),
                  static_cast<unsigned>(args.rows * args.kv_heads));
  DispatchElement(element, [&]<class T>(T) {
    DispatchQueries(division.shared, [&]<int kQueries>(Constant<kQueries>) {
      DecodeSplits<T, kQueries><<<grid, kThreads, 0, stream>>>(args, division);
    });
    const auto queries = static_cast<unsigned>(args.rows * args.heads * args.queries);
    JoinSplits<T><<<queries, kJoinThreads, 0, stream>>>(args, static_cast<int>(division.splits));
  });
  CheckLaunch("Decode");
}

void Append(Element element, const AppendArgs& args, Stream stream) {
  const std::int64_t elements = args.rows * args.heads * args.count * args.dim;
  if (elements == 0) return;
  DispatchPacks(element, args.dim | args.from_row | args.from_head | args.from_token,
                {args.keys, args.values, args.cached_keys, args.cached_values}, [&]<class T, int N>(T, Constant<N>) {
                  const dim3 grid(BlocksFor(elements / N, kCopyThreads), 2);
                  AppendKernel<T, N><<<grid, kCopyThreads, 0, stream>>>(args, elements / N);
                });
  CheckLaunch("Append");
}

}  // namespace millrace::engine::cuda
