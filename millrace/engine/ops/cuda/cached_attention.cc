#include "millrace/engine/ops/cached_attention.h"

#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/cuda/attention.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"

namespace millrace::engine::ops::cuda {
namespace {

/// Queries that share keys: for more, products of matrices are faster than a kernel that reads the keys again.
constexpr std::int64_t kMaxShared = 64;

/// What computes a sequence's attention.
enum class Way { kFewQueries, kPrompt, kBehind };

/// A batch of tokens, their cache, and the attention of each.
struct Batch {
  const at::Tensor& qkv;
  const HeadLayout& layout;
  const Sequences& sequences;
  const CachedLayer& cache;
  const BlockTables& tables;
  const AttentionRule& rule;

  kernels::CachedSequences There(std::int64_t first, std::int64_t last) const {
    const at::Device device = qkv.device();
    const at::Tensor blocks = tables.On(device);
    return {.bounds = MemoryOf<std::int32_t>(sequences.BoundsOn(device)) + first,
            .positions = MemoryOf<std::int32_t>(sequences.PositionsOn(device)),
            .tables = MemoryOf<std::int32_t>(blocks) + first * blocks.size(1),
            .count = last - first,
            .width = blocks.size(1)};
  }
  kernels::CacheBlocks Blocks() const {
    return {.keys = MemoryOf(cache.keys),
            .values = MemoryOf(cache.values),
            .kv_heads = layout.kv_heads,
            .block_tokens = cache.block_tokens(),
            .dim = layout.head_dim};
  }
  Way WayOf(std::int64_t sequence) const {
    const std::int64_t length = sequences.length(sequence);
    const bool few = length * (layout.heads / layout.kv_heads) <= kMaxShared;
    if (few && kernels::FitsCachedAttention(ElementOf(qkv), layout.head_dim)) return Way::kFewQueries;
    return sequences.past(sequence) == 0 ? Way::kPrompt : Way::kBehind;
  }
};

void AttendFewQueries(const Batch& batch, std::int64_t first, std::int64_t last, const at::Tensor& out) {
  const Sequences& sequences = batch.sequences;
  std::int64_t all_keys = 0, longest = 0, most_tokens = 0;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t keys = sequences.past(i) + sequences.length(i);
    all_keys += keys;
    longest = std::max(longest, keys);
    most_tokens = std::max(most_tokens, sequences.length(i));
  }
  kernels::CachedAttentionArgs args{.qkv = batch.qkv.data_ptr(),
                                    .out = MemoryOf(out),
                                    .heads = batch.layout.heads,
                                    .first_token = sequences.begin(first),
                                    .tokens = sequences.begin(last) - sequences.begin(first),
                                    .most_tokens = most_tokens,
                                    .sequences = batch.There(first, last),
                                    .cache = batch.Blocks(),
                                    .causal = batch.rule.causal,
                                    .window = batch.rule.window,
                                    .scale = static_cast<float>(batch.rule.ScaleOf(batch.layout.head_dim)),
                                    .softcap = static_cast<float>(batch.rule.softcap)};
  args.splits = kernels::DivideKeys(args, all_keys, longest);
  const at::Tensor scratch = NewLike(batch.qkv, {kernels::CachedAttentionScratch(args)}, at::kFloat);
  args.scratch = MemoryOf<float>(scratch);
  kernels::CachedAttention(ElementOf(batch.qkv), args, StreamOf(batch.qkv));
}

/// Returns the attention of a part of a sequence that follows earlier tokens.
at::Tensor AttendPart(const Batch& batch, std::int64_t sequence) {
  const Sequences& sequences = batch.sequences;
  const std::int64_t count = sequences.length(sequence), total = sequences.past(sequence) + count;
  const std::int64_t in_block = batch.cache.block_tokens(), blocks = (total + in_block - 1) / in_block;
  const at::Tensor table = batch.tables.On(batch.qkv.device())[sequence].narrow(0, 0, blocks);
  const auto gathered = [&](const at::Tensor& layer) {
    return layer.index_select(0, table).transpose(1, 2).reshape({-1, layer.size(1), layer.size(3)}).narrow(0, 0, total);
  };
  const at::Tensor queries = batch.qkv.narrow(0, sequences.begin(sequence), count)
                                 .view({count, -1, batch.layout.head_dim})
                                 .narrow(1, 0, batch.layout.heads);
  return AttendBehind(queries, gathered(batch.cache.keys), gathered(batch.cache.values), batch.rule);
}

}  // namespace

bool RepeatsAttendBlocks(const HeadLayout& layout, at::ScalarType type) {
  return layout.heads / layout.kv_heads <= kMaxShared && kernels::FitsCachedAttention(ElementOf(type), layout.head_dim);
}

at::Tensor AttendBlocks(const at::Tensor& qkv_in, const HeadLayout& layout, const Sequences& sequences,
                        const CachedLayer& cache, const BlockTables& tables, const AttentionRule& rule) {
  const c10::cuda::CUDAGuard guard(qkv_in.device());
  const at::Tensor qkv = Dense(qkv_in);
  TORCH_CHECK(cache.keys.scalar_type() == qkv.scalar_type(), "a cache of ", cache.keys.scalar_type(), " for ",
              qkv.scalar_type());
  const Batch batch{qkv, layout, sequences, cache, tables, rule};
  kernels::StoreInCache(ElementOf(qkv),
                        {.qkv = MemoryOf(qkv),
                         .tokens = qkv.size(0),
                         .heads = layout.heads,
                         .sequences = batch.There(0, sequences.count()),
                         .cache = batch.Blocks()},
                        StreamOf(qkv));
  const at::Tensor out = NewLike(qkv, {qkv.size(0), layout.heads * layout.head_dim}, qkv.scalar_type());
  // Neighbours that the same kernels take are one launch.
  for (std::int64_t first = 0, last = 0; first < sequences.count(); first = last) {
    const Way way = batch.WayOf(first);
    for (last = first + 1; last < sequences.count() && way != Way::kBehind && batch.WayOf(last) == way;) ++last;
    if (way == Way::kFewQueries) {
      AttendFewQueries(batch, first, last, out);
      continue;
    }
    const std::int64_t begin = sequences.begin(first), tokens = sequences.begin(last) - begin;
    const at::Tensor mixed =
        way == Way::kPrompt
            ? AttendPrompts(qkv.narrow(0, begin, tokens), layout,
                            first == 0 && last == sequences.count() ? sequences : sequences.Slice(first, last), rule)
            : AttendPart(batch, first);
    if (tokens == qkv.size(0)) return mixed;
    out.narrow(0, begin, tokens).copy_(mixed);
  }
  return out;
}

}  // namespace millrace::engine::ops::cuda
