// Attention of few queries over many keys in the blocks of a cache ("flash decoding": the keys of a head are divided
// among blocks of threads, and a second kernel joins their results; paged attention: Kwon et al. 2023). A block of
// threads reads keys and values once for all query heads that share them. Four threads compute the score of a key; then
// groups of threads, each with a vector of the head's elements, add up the values. The keys of the next step and the
// values of this one are loaded before they are needed, so that memory is never idle.
#include <cfloat>

#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = kWarp;               // that a block of threads takes at a time
constexpr int kPerKey = kThreads / kKeys;  // threads that compute a score
constexpr int kMaxDim = 256;
constexpr int kMaxQueries = 8;  // of a block of threads; more are divided among blocks, which read the keys again
constexpr std::int64_t kMaxSplits = 256;

/// Queries of one sequence that share a key-value head, and all tokens whose keys they may see.
struct Shared {
  int first_token, tokens, queries, keys, first_key;
};
__device__ __forceinline__ Shared SharedOf(const CachedAttentionArgs& a, int sequence, int group) {
  Shared s{};
  s.first_token = a.sequences.bounds[sequence];
  s.tokens = a.sequences.bounds[sequence + 1] - s.first_token;
  s.queries = group * s.tokens;
  const bool is_none = a.sequences.tables[sequence * a.sequences.width] < 0;
  s.keys = is_none ? 0 : a.sequences.positions[s.first_token + s.tokens - 1] + 1;
  const std::int64_t first = s.keys - s.tokens - a.window + 1;
  s.first_key = a.causal && a.window > 0 && first > 0 ? static_cast<int>(first) : 0;
  return s;
}

/// What blocks of threads leave for the join: of each split of each query, in this order, the weighted sum of values
/// [dim]; then of each split of each query the greatest score and the sum of exponentials.
struct Scratch {
  float *values, *sums;
};
__device__ __forceinline__ Scratch ScratchOf(const CachedAttentionArgs& a, std::int64_t query) {
  const std::int64_t queries = a.tokens * a.heads, splits = a.splits.count, dim = a.cache.dim;
  return {a.scratch + query * splits * dim, a.scratch + (queries * dim + query * 2) * splits};
}

/// Blocks of threads that a multiprocessor is to have at once: registers are divided among them.
constexpr int BlocksAtOnce(int queries, int vectors, int vector_elements) {
  return queries > 1 || vectors * vector_elements > 64 ? 1 : vectors * vector_elements > 32 ? 4 : 6;
}

/// kQueries: the most queries of a block of threads. kVectors: the most vectors of a key that a thread reads, and of
/// values in a step.
template <class T, int kQueries, int kVectors>
__global__ void __launch_bounds__(kThreads, BlocksAtOnce(kQueries, kVectors, kPack<T>))
    AttendSplits(CachedAttentionArgs a) {
  constexpr int N = kPack<T>;
  StartEarly();
  const int kv_heads = static_cast<int>(a.cache.kv_heads), heads = static_cast<int>(a.heads), group = heads / kv_heads;
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads, kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int first_query = static_cast<int>(blockIdx.y) * kQueries, split = static_cast<int>(blockIdx.z);
  const Shared all = SharedOf(a, sequence, group);
  if (first_query >= all.queries) return;
  const int count = all.queries - first_query < kQueries ? all.queries - first_query : kQueries;
  const int begin = all.first_key + split * static_cast<int>(a.splits.keys);
  const int end = min(begin + static_cast<int>(a.splits.keys), all.keys);
  const int dim = static_cast<int>(a.cache.dim), vectors = dim / N, thread = static_cast<int>(threadIdx.x);
  // A query's head and token: those that share a key-value head lie head by head.
  const auto head_of = [&](int i) { return kv_head * group + (first_query + i) / all.tokens; };
  const auto token_of = [&](int i) { return all.first_token + (first_query + i) % all.tokens; };
  const auto number_of = [&](int i) { return (token_of(i) - a.first_token) * heads + head_of(i); };
  const auto out_of = [&](int i) {
    return static_cast<T*>(a.out) + (static_cast<std::int64_t>(token_of(i)) * heads + head_of(i)) * dim;
  };
  if (begin >= end) {
    for (int i = thread; i < count && a.splits.count > 1; i += kThreads) {
      float* const sums = ScratchOf(a, number_of(i)).sums + 2 * split;
      sums[0] = -FLT_MAX;
      sums[1] = 0;
    }
    for (int i = thread; i < count * dim && a.splits.count == 1; i += kThreads) {
      out_of(i / dim)[i % dim] = FromFloat<T>(0);
    }
    return;
  }

  alignas(16) __shared__ float queries[kQueries][kMaxDim];
  __shared__ float weights[kQueries][kKeys];                       // of the keys of a step; before, their scores
  __shared__ float most[kQueries], sum[kQueries], kept[kQueries];  // of the keys so far
  __shared__ int first_seen[kQueries], behind_seen[kQueries];      // the keys that a query sees
  __shared__ std::int64_t places[2][kKeys];  // where the elements of the keys and values of a step begin, by turns
  for (int i = 0; i < kQueries; ++i) {
    const T* q = static_cast<const T*>(a.qkv);
    if (i < count) q += static_cast<std::int64_t>(token_of(i)) * (heads + 2 * kv_heads) * dim + head_of(i) * dim;
    for (int at = thread; at < dim; at += kThreads) queries[i][at] = i < count ? ToFloat(q[at]) * a.scale : 0;
  }
  if (thread < kQueries) {
    const int position = all.keys - all.tokens + (first_query + thread) % all.tokens;
    most[thread] = -FLT_MAX;
    sum[thread] = 0;
    first_seen[thread] = a.causal && a.window > 0 ? position - static_cast<int>(a.window) + 1 : 0;
    behind_seen[thread] = thread >= count ? 0 : a.causal ? position + 1 : all.keys;
  }
  float mixed[kQueries][N];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int k = 0; k < N; ++k) mixed[i][k] = 0;
  }
  // For the values, threads are lanes of vectors: vector `part` of keys `lane`, `lane` + lanes, …
  const int lanes = kThreads / vectors, lane = thread / vectors, part = thread % vectors;
  const int of_key = thread / kPerKey, first_vector = thread % kPerKey;
  Pack<T, N> key_vectors[kVectors], value_vectors[kVectors];
  const auto load_key = [&](int base, int turn) {
    if (base + of_key >= end) return;
    const unsigned key = base + of_key, in_blocks = static_cast<unsigned>(a.cache.block_tokens);
    const unsigned block = key / in_blocks;
    const std::int32_t number = a.sequences.tables[sequence * a.sequences.width + block];
    const std::int64_t row =
        (static_cast<std::int64_t>(number) * kv_heads + kv_head) * in_blocks + (key - block * in_blocks);
    if (first_vector == 0) places[turn][of_key] = row * dim;
    const T* const from = static_cast<const T*>(a.cache.keys) + row * dim + first_vector * N;
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (first_vector + u * kPerKey < vectors) key_vectors[u] = Load<N>(from + u * kPerKey * N);
    }
  };
  load_key(begin, 0);
  __syncthreads();
  int turn = 0;
  for (int base = begin; base < end; base += kKeys, turn ^= 1) {
    const int rows = min(end - base, kKeys);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const int row = lane + u * lanes;
      if (lane >= lanes || row >= rows) continue;
      value_vectors[u] = Load<N>(static_cast<const T*>(a.cache.values) + places[turn][row] + part * N);
    }
    const int key = base + of_key;
    float scores[kQueries];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) scores[i] = 0;
    if (key < end) {
#pragma unroll
      for (int u = 0; u < kVectors; ++u) {
        const int at = (first_vector + u * kPerKey) * N;
        if (at >= dim) continue;
        Forget(key_vectors[u]);
#pragma unroll
        for (int i = 0; i < kQueries; ++i) {
#pragma unroll
          for (int k = 0; k < N; ++k) scores[i] += ToFloat(key_vectors[u].values[k]) * queries[i][at + k];
        }
      }
    }
    load_key(base + kKeys, turn ^ 1);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float score = OverLanes(scores[i], kPerKey, Sum());
      if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
      const bool sees = key < end && key >= first_seen[i] && key < behind_seen[i];
      if (first_vector == 0) weights[i][of_key] = sees ? score : -FLT_MAX;
    }
    __syncthreads();
    for (int i = thread / kWarp; i < kQueries; i += kThreads / kWarp) {  // a warp has a query, a lane a key
      const float score = weights[i][thread % kWarp];
      const float highest = fmaxf(most[i], OverLanes(score, kWarp, Most()));
      const float weight = score > -FLT_MAX ? __expf(score - highest) : 0;
      const float total = OverLanes(weight, kWarp, Sum());
      weights[i][thread % kWarp] = weight;
      __syncwarp();  // all lanes have read most[i]
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
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const int row = lane + u * lanes;
      if (lane >= lanes || row >= rows) continue;
      Forget(value_vectors[u]);
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        const float weight = weights[i][row];
#pragma unroll
        for (int k = 0; k < N; ++k) mixed[i][k] += weight * ToFloat(value_vectors[u].values[k]);
      }
    }
    __syncthreads();
  }
  // The lanes' sums, in the order of lanes. `queries` is not needed any more.
  for (int next = 0; next < lanes; ++next) {
    if (lane == next) {
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          float& whole = queries[i][part * N + k];
          whole = next == 0 ? mixed[i][k] : whole + mixed[i][k];
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < count; ++i) {
    if (a.splits.count == 1) {
      T* const out = out_of(i);
      for (int at = thread; at < dim; at += kThreads) out[at] = FromFloat<T>(queries[i][at] / sum[i]);
      continue;
    }
    const Scratch into = ScratchOf(a, number_of(i));
    if (thread == 0) {
      into.sums[2 * split] = most[i];
      into.sums[2 * split + 1] = sum[i];
    }
    for (int at = thread; at < dim; at += kThreads) into.values[split * dim + at] = queries[i][at];
  }
}

constexpr int kJoinThreads = 256;

/// Joins the splits of a query of a head: blockIdx.x. Groups of threads, each with a vector of the head's elements,
/// take splits in turns. Splits without keys have a sum of 0 and no values.
template <class T>
__global__ void __launch_bounds__(kJoinThreads) JoinSplits(CachedAttentionArgs a) {
  constexpr int kFour = 4;  // float32 elements in a vector of 16 bytes
  StartEarly();
  const std::int64_t query = blockIdx.x;
  const Scratch from = ScratchOf(a, query);
  const int thread = static_cast<int>(threadIdx.x), dim = static_cast<int>(a.cache.dim);
  const int splits = static_cast<int>(a.splits.count);
  const bool has_split = thread < splits;
  __shared__ float weights[kMaxSplits];
  __shared__ float mixed[kJoinThreads][kFour];
  const float mine = has_split ? from.sums[2 * thread] : -FLT_MAX;
  const float own_sum = has_split ? from.sums[2 * thread + 1] : 0;
  const float most = OverRow(mine, Most());
  const float weight = own_sum > 0 ? __expf(mine - most) : 0;
  if (has_split) weights[thread] = weight;
  const float sum = OverRow(own_sum * weight, Sum());
  const int vectors = dim / kFour, groups = kJoinThreads / vectors, group = thread / vectors, part = thread % vectors;
  float own[kFour] = {};
  if (group < groups) {
#pragma unroll 8
    for (int i = group; i < splits; i += groups) {
      if (weights[i] == 0) continue;
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
    static_cast<T*>(a.out)[(a.first_token * a.heads + query) * dim + at] = FromFloat<T>(sum > 0 ? total / sum : 0);
  }
}

constexpr int kCopyThreads = 256;

/// blockIdx.x: a token. blockIdx.y: 0 for keys, 1 for values.
template <class T, int N>
__global__ void __launch_bounds__(kCopyThreads) StoreKernel(StoreArgs a) {
  StartEarly();
  const std::int64_t token = blockIdx.x, dim = a.cache.dim, heads = a.cache.kv_heads;
  __shared__ std::int64_t row;  // of the token in the first head of its block; negative: it has none
  if (threadIdx.x == 0) {
    std::int64_t low = token < a.sequences.count ? token : a.sequences.count - 1;  // its sequence is this or one before
    if (a.sequences.bounds[low] != token) {
      std::int64_t high = low;
      for (low = 0; low < high;) {
        const std::int64_t middle = (low + high + 1) / 2;
        if (a.sequences.bounds[middle] <= token) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
    }
    const std::int32_t* const table = a.sequences.tables + low * a.sequences.width;
    const auto position = static_cast<unsigned>(a.sequences.positions[token]);
    const auto in_blocks = static_cast<unsigned>(a.cache.block_tokens);
    const unsigned block = position / in_blocks;
    row = table[0] < 0 ? -1 : table[block] * heads * a.cache.block_tokens + (position - block * in_blocks);
  }
  __syncthreads();
  if (row < 0) return;
  const T* const from = static_cast<const T*>(a.qkv) + token * (a.heads + 2 * heads) * dim +
                        (a.heads + (blockIdx.y == 0 ? 0 : heads)) * dim;
  T* const to = static_cast<T*>(blockIdx.y == 0 ? a.cache.keys : a.cache.values) + row * dim;
  const int vectors = static_cast<int>(dim / N), all = static_cast<int>(heads) * vectors;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kCopyThreads) {
    const int head = i / vectors, at = (i - head * vectors) * N;
    Store(to + head * a.cache.block_tokens * dim + at, Load<N>(from + i * static_cast<std::int64_t>(N)));
  }
}

/// Calls work(Constant<queries of a block of threads>{}).
template <class Work>
void DispatchQueries(std::int64_t shared, Work&& work) {
  if (shared <= 1) return work(Constant<1>{});
  if (shared <= 2) return work(Constant<2>{});
  if (shared <= 4) return work(Constant<4>{});
  work(Constant<kMaxQueries>{});
}

/// Calls work(Constant<most vectors that a thread has>{}) for heads of this size.
template <class T, class Work>
void DispatchVectors(std::int64_t dim, Work&& work) {
  constexpr int kOfLargest = kMaxDim / kPack<T> / kPerKey;
  if (dim <= kMaxDim / 2) return work(Constant<kOfLargest / 2>{});
  work(Constant<kOfLargest>{});
}

std::int64_t MostShared(const CachedAttentionArgs& args) { return args.heads / args.cache.kv_heads * args.most_tokens; }
std::int64_t GroupsOf(const CachedAttentionArgs& args) { return (MostShared(args) + kMaxQueries - 1) / kMaxQueries; }

}  // namespace

bool FitsCachedAttention(Element element, std::int64_t dim) {
  bool fits = false;
  DispatchElement(element, [&]<class T>(T) { fits = dim > 0 && dim <= kMaxDim && dim % kPack<T> == 0; });
  return fits;
}

KeySplits DivideKeys(const CachedAttentionArgs& args, std::int64_t all_keys, std::int64_t longest) {
  if (args.causal && args.window > 0) {
    const std::int64_t seen = args.window + args.most_tokens;
    longest = std::min(longest, seen);
    all_keys = std::min(all_keys, args.sequences.count * seen);
  }
  const std::int64_t wanted = Multiprocessors() * 8, heads = args.cache.kv_heads * GroupsOf(args);
  const std::int64_t fair = (all_keys * heads + wanted - 1) / wanted, least = (longest + kMaxSplits - 1) / kMaxSplits;
  KeySplits splits{.keys = RoundUp(std::max({fair, least, std::int64_t{1}}), kKeys)};
  splits.count = std::max<std::int64_t>(1, (longest + splits.keys - 1) / splits.keys);
  return splits;
}

std::int64_t CachedAttentionScratch(const CachedAttentionArgs& args) {
  return args.splits.count == 1 ? 0 : args.tokens * args.heads * args.splits.count * (args.cache.dim + 2);
}

void CachedAttention(Element element, const CachedAttentionArgs& args, Stream stream) {
  if (args.tokens * args.heads == 0) return;
  const dim3 grid(static_cast<unsigned>(args.sequences.count * args.cache.kv_heads),
                  static_cast<unsigned>(GroupsOf(args)), static_cast<unsigned>(args.splits.count));
  DispatchElement(element, [&]<class T>(T) {
    DispatchQueries(MostShared(args), [&]<int kQueries>(Constant<kQueries>) {
      DispatchVectors<T>(args.cache.dim, [&]<int kVectors>(Constant<kVectors>) {
        Launch(AttendSplits<T, kQueries, kVectors>, grid, kThreads, stream, args);
      });
    });
    if (args.splits.count > 1) {
      Launch(JoinSplits<T>, static_cast<unsigned>(args.tokens * args.heads), kJoinThreads, stream, args);
    }
  });
}

void StoreInCache(Element element, const StoreArgs& args, Stream stream) {
  if (args.tokens * args.cache.kv_heads * args.cache.dim == 0) return;
  DispatchPacks(element, args.cache.dim, {args.qkv, args.cache.keys, args.cache.values},
                [&]<class T, int N>(T, Constant<N>) {
                  const dim3 grid(static_cast<unsigned>(args.tokens), 2);
                  Launch(StoreKernel<T, N>, grid, kCopyThreads, stream, args);
                });
}

}  // namespace millrace::engine::cuda
