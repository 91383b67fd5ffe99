#include "millrace/engine/ops/cached_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/ops/cpu/cached_attention.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Stores the keys and values of a batch in its blocks.
template <class T, class S>
void StoreAll(const T* qkv, const HeadLayout& layout, const Sequences& sequences, const cpu::CachedBlocks<S>& cache,
              const BlockTables& tables) {
  const std::int64_t dim = layout.head_dim, stride = layout.columns();
  at::parallel_for(0, sequences.count() * layout.kv_heads, 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t sequence = i / layout.kv_heads, kv_head = i % layout.kv_heads;
      const std::span<const std::int32_t> table = tables.Of(sequence);
      const T* const keys = qkv + sequences.begin(sequence) * stride + (layout.heads + kv_head) * dim;
      for (std::int64_t done = 0, length = sequences.length(sequence); done < length;) {
        const std::int64_t position = sequences.past(sequence) + done, in_block = position % cache.block_tokens;
        const std::int64_t count = std::min(length - done, cache.block_tokens - in_block);
        const T* const from = keys + done * stride;
        cpu::StoreInBlock(cache, table[static_cast<std::size_t>(position / cache.block_tokens)], kv_head, in_block,
                          from, from + layout.kv_heads * dim, stride, count);
        done += count;
      }
    }
  });
}

/// The unit of work of a thread: some rows of one key-value head of a sequence. A row is a token and one of the query
/// heads that share the key-value head.
struct RowTask {
  std::int64_t sequence, kv_head, first_row, rows;
  std::int64_t keys;  ///< that the last row sees
};

std::vector<RowTask> TasksOf(const HeadLayout& layout, const Sequences& sequences) {
  const std::int64_t group = layout.heads / layout.kv_heads;
  std::vector<RowTask> tasks;
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t rows = sequences.length(i) * group;
    for (std::int64_t first = 0; first < rows; first += cpu::kMaxAttendingRows) {
      const std::int64_t count = std::min(cpu::kMaxAttendingRows, rows - first);
      const std::int64_t keys = sequences.past(i) + (first + count - 1) / group + 1;
      for (std::int64_t head = 0; head < layout.kv_heads; ++head) tasks.push_back({i, head, first, count, keys});
    }
  }
  // Threads that take the next task when they are free end at about the same time.
  std::ranges::stable_sort(tasks, std::ranges::greater(), &RowTask::keys);
  return tasks;
}

/// S: of the cache.
template <class T, class S>
at::Tensor AttendBlocksOf(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                          const CachedLayer& layer, const BlockTables& tables, const AttentionRule& rule) {
  const std::int64_t dim = layout.head_dim, stride = layout.columns(), group = layout.heads / layout.kv_heads;
  TORCH_CHECK(layer.keys.stride(2) == 1 && layer.values.is_contiguous(), "a cache of another device");
  const cpu::CachedBlocks<S> cache{.keys = static_cast<S*>(layer.keys.data_ptr()),
                                   .values = static_cast<S*>(layer.values.data_ptr()),
                                   .kv_heads = layout.kv_heads,
                                   .head_dim = dim,
                                   .block_tokens = layer.block_tokens(),
                                   .key_scales = Data<float>(layer.key_scales),
                                   .value_scales = Data<float>(layer.value_scales)};
  const T* const from = Data<T>(qkv);
  StoreAll(from, layout, sequences, cache, tables);

  at::Tensor out = at::empty({qkv.size(0), layout.heads * dim}, qkv.options());
  T* const to = Data<T>(out);
  const std::vector<RowTask> tasks = TasksOf(layout, sequences);
  const auto scale = static_cast<float>(rule.ScaleOf(dim));
  const std::int64_t scores_stride = cpu::AttendBlocks<S>::ScoresStride(tasks.front().keys, cache.block_tokens);
  std::atomic<std::size_t> next = 0;
  const auto threads = std::min(static_cast<std::int64_t>(tasks.size()), std::int64_t{at::get_num_threads()});
  at::parallel_for(0, threads, 1, [&](std::int64_t, std::int64_t) {
    constexpr std::int64_t kRows = cpu::kMaxAttendingRows;
    std::vector<float> queries(static_cast<std::size_t>(kRows * dim)), mixed(queries.size());
    std::vector<float> scores(static_cast<std::size_t>(kRows * scores_stride));
    std::vector<cpu::KeySpan> visible(static_cast<std::size_t>(kRows));
    for (std::size_t i = next++; i < tasks.size(); i = next++) {
      const RowTask& task = tasks[i];
      const std::int64_t begin = sequences.begin(task.sequence), past = sequences.past(task.sequence);
      const std::int64_t length = past + sequences.length(task.sequence);
      const auto token = [&](std::int64_t row) { return (task.first_row + row) / group; };
      const auto head = [&](std::int64_t row) { return task.kv_head * group + (task.first_row + row) % group; };
      for (std::int64_t row = 0; row < task.rows; ++row) {
        const T* const query = from + (begin + token(row)) * stride + head(row) * dim;
        float* const into = queries.data() + row * dim;
        for (std::int64_t d = 0; d < dim; ++d) into[d] = cpu::ToFloat(query[d]) * scale;
        const std::int64_t position = past + token(row);
        visible[static_cast<std::size_t>(row)] = {rule.begin(position), rule.end(position, length)};
      }
      cpu::AttendBlocks<S>{.cache = cache,
                           .table = tables.Of(task.sequence).data(),
                           .kv_head = task.kv_head,
                           .queries = queries.data(),
                           .visible = visible.data(),
                           .softcap = static_cast<float>(rule.softcap),
                           .rows = task.rows,
                           .scores = scores.data(),
                           .scores_stride = scores_stride,
                           .out = mixed.data()}
          .Run();
      for (std::int64_t row = 0; row < task.rows; ++row) {
        T* const into = to + (begin + token(row)) * layout.heads * dim + head(row) * dim;
        for (std::int64_t d = 0; d < dim; ++d)
          into[d] = cpu::FromFloat<T>(mixed[static_cast<std::size_t>(row * dim + d)]);
      }
    }
  });
  return out;
}

template <class T>
at::Tensor FusedAttendBlocks(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                             const CachedLayer& layer, const BlockTables& tables, const AttentionRule& rule) {
  if (layer.keys.scalar_type() == at::kChar) {
    return AttendBlocksOf<T, std::int8_t>(qkv, layout, sequences, layer, tables, rule);
  }
  TORCH_CHECK(layer.keys.scalar_type() == kScalarType<T>, "a cache of another type");
  return AttendBlocksOf<T, T>(qkv, layout, sequences, layer, tables, rule);
}

/// Returns the first `length` of the keys or values that `blocks` hold, [1, kv_heads, length, head_dim].
at::Tensor Gather(const at::Tensor& layer, std::span<const std::int32_t> blocks, std::int64_t length) {
  std::vector<at::Tensor> parts;
  for (std::int64_t done = 0; done < length; done += layer.size(2)) {
    const std::int32_t block = blocks[static_cast<std::size_t>(done / layer.size(2))];
    parts.push_back(layer[block].narrow(1, 0, std::min(layer.size(2), length - done)));
  }
  return at::cat(parts, 1).unsqueeze(0);
}

/// By operations on tensors, sequence by sequence.
at::Tensor ComposedAttendBlocks(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                                const CachedLayer& cache, const BlockTables& tables, const AttentionRule& rule) {
  TORCH_CHECK(cache.keys.scalar_type() == qkv.scalar_type(), "only the fused kernels of a CPU read caches of codes");
  const std::int64_t block_tokens = cache.block_tokens();
  std::vector<at::Tensor> mixed;
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t past = sequences.past(i), length = sequences.length(i);
    const at::Tensor all = qkv.narrow(0, sequences.begin(i), length)
                               .view({1, length, layout.heads + 2 * layout.kv_heads, layout.head_dim})
                               .transpose(1, 2);
    const at::Tensor keys = all.narrow(1, layout.heads, layout.kv_heads).squeeze(0);
    const at::Tensor values = all.narrow(1, layout.heads + layout.kv_heads, layout.kv_heads).squeeze(0);
    for (std::int64_t done = 0; done < length;) {
      const std::int64_t in_block = (past + done) % block_tokens;
      const std::int64_t count = std::min(length - done, block_tokens - in_block);
      const std::int32_t block = tables.Of(i)[static_cast<std::size_t>((past + done) / block_tokens)];
      cache.keys[block].narrow(1, in_block, count).copy_(keys.narrow(1, done, count));
      cache.values[block].narrow(1, in_block, count).copy_(values.narrow(1, done, count));
      done += count;
    }
    const at::Tensor queries = all.narrow(1, 0, layout.heads);
    mixed.push_back(reference::AttendCached(queries, Gather(cache.keys, tables.Of(i), past + length),
                                            Gather(cache.values, tables.Of(i), past + length), rule)
                        .squeeze(0));
  }
  return at::cat(mixed);
}

}  // namespace

CachedLayer MakeCachedLayer(std::int64_t blocks, std::int64_t kv_heads, std::int64_t block_tokens,
                            std::int64_t head_dim, const at::TensorOptions& options) {
  const at::Tensor values = at::empty({blocks, kv_heads, block_tokens, head_dim}, options);
  const bool codes = values.is_cpu() && values.scalar_type() == at::kChar;
  if (!codes && !HasFused(values)) return {.keys = at::empty_like(values), .values = values};
  TORCH_CHECK(block_tokens % cpu::kKeyLanes == 0, "blocks of ", block_tokens, " tokens are no multiple of ",
              cpu::kKeyLanes);
  CachedLayer layer{.keys = at::empty({blocks, kv_heads, head_dim, block_tokens}, options).transpose(2, 3),
                    .values = values};
  if (codes) {
    layer.key_scales = at::empty({blocks, kv_heads, block_tokens}, options.dtype(at::kFloat));
    layer.value_scales = at::empty_like(layer.key_scales);
  }
  return layer;
}

void BlockTables::Add(std::span<const std::int32_t> blocks) {
  there_.reset();
  blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
  ends_.push_back(blocks_.size());
}

BlockTables BlockTables::Written(at::Tensor there) {
  BlockTables tables;
  tables.ends_.resize(static_cast<std::size_t>(there.size(0)));
  tables.there_ = std::move(there);
  return tables;
}

at::Tensor BlockTables::On(at::Device device) const {
  if (there_.defined() && there_.device() == device) return there_;
  std::size_t width = 0;
  for (std::int64_t i = 0; i < count(); ++i) width = std::max(width, Of(i).size());
  const at::Tensor rows = at::zeros({count(), static_cast<std::int64_t>(width)}, at::kInt);
  auto* row = rows.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < count(); ++i, row += width) std::ranges::copy(Of(i), row);
  there_ = ToDevice(rows, device);
  return there_;
}

std::span<const std::int32_t> BlockTables::Of(std::int64_t sequence) const {
  const auto i = static_cast<std::size_t>(sequence);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::span(blocks_).subspan(begin, ends_[i] - begin);
}

void BlockTables::Check(const Sequences& sequences, std::int64_t block_tokens, std::int64_t blocks) const {
  TORCH_CHECK(count() == sequences.count(), count(), " tables for ", sequences.count(), " sequences");
  for (std::int64_t i = 0; i < count(); ++i) {
    const auto room = static_cast<std::int64_t>(Of(i).size()) * block_tokens;
    TORCH_CHECK(sequences.past(i) + sequences.length(i) <= room, "a sequence's blocks have room for ", room,
                " tokens, not for ", sequences.past(i) + sequences.length(i));
    for (const std::int32_t block : Of(i)) TORCH_CHECK(block >= 0 && block < blocks, "no block ", block);
  }
}

at::Tensor AttendBlocks(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                        const CachedLayer& cache, const BlockTables& tables, const AttentionRule& rule) {
  static const auto kernels =
      AndOnCuda(OnCpu("AttendBlocks", ComposedAttendBlocks, FusedAttendBlocks<float>, FusedAttendBlocks<cpu::Bf16>),
                InCuda<cuda::AttendBlocks>());
  return kernels.For(qkv)(qkv, layout, sequences, cache, tables, rule);
}

bool RepeatsAttendBlocks([[maybe_unused]] const HeadLayout& layout, [[maybe_unused]] at::ScalarType type,
                         [[maybe_unused]] at::Device device) {
  if constexpr (kBuiltWithCuda) return device.is_cuda() && cuda::RepeatsAttendBlocks(layout, type);
  return false;
}

}  // namespace millrace::engine::ops
