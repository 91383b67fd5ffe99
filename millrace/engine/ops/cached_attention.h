// Attention over keys and values in blocks of a cache (paged attention; Kwon et al. 2023).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/engine/ops/attention.h"

namespace millrace::engine::ops {

/// The keys and values of one layer [blocks, kv_heads, block_tokens, head_dim]. The memory may have another order:
/// that of MakeCachedLayer().
struct CachedLayer {
  at::Tensor keys, values;
  /// Factors of keys and values that are 8-bit integers: [blocks, kv_heads, block_tokens] in float32; undefined for
  /// other types. Each token has factors of its own, so that later tokens do not change what is stored.
  at::Tensor key_scales, value_scales;
  std::int64_t block_tokens() const { return keys.size(2); }
};
/// Allocates a layer as the kernels of the device read it. Does not fill it. `options` has the type of the keys and
/// values: that of the computation, or on a CPU at::kChar, 8-bit integers. `block_tokens` must be a multiple of 16 on
/// a CPU.
CachedLayer MakeCachedLayer(std::int64_t blocks, std::int64_t kv_heads, std::int64_t block_tokens,
                            std::int64_t head_dim, const at::TensorOptions& options);

/// The tables of the blocks that hold the tokens of each sequence of a batch: token p is in block p / block_tokens of
/// its table. Tables may share blocks that no token of the batch is written to. One thread at a time.
class BlockTables {
 public:
  BlockTables() = default;
  /// Returns the tables of some sequences whose blocks stand in `there`: int32 [count, width] on a GPU, which On()
  /// returns. Other blocks may be written there later. Work that was recorded (device/recorder.h) then runs again with
  /// those. A row that begins with a negative number stands for no sequence: AttendBlocks() stores nothing for it, and
  /// its result is 0. Of() has no blocks.
  static BlockTables Written(at::Tensor there);
  /// Adds the table of the next sequence.
  void Add(std::span<const std::int32_t> blocks);
  std::int64_t count() const { return static_cast<std::int64_t>(ends_.size()); }
  std::span<const std::int32_t> Of(std::int64_t sequence) const;
  /// Throws c10::Error unless each table has room for its sequence, in blocks that a cache of `blocks` has.
  void Check(const Sequences& sequences, std::int64_t block_tokens, std::int64_t blocks) const;
  /// Returns the tables as rows on `device`: int32 [count(), width]. What is behind a table is never read. The first
  /// call for a GPU copies them there, without waiting.
  at::Tensor On(at::Device device) const;

 private:
  std::vector<std::int32_t> blocks_;  ///< of all sequences, one behind the other
  std::vector<std::size_t> ends_;
  mutable at::Tensor there_;  ///< on the device that was asked for last
};

/// Stores the keys and values of the tokens qkv [N, layout.columns()] behind those that the cache has of their
/// sequences, and returns the attention [N, heads·head_dim] of each token over its whole sequence. On a CPU, the result
/// of a token has the same bits whatever other tokens and sequences are in the batch. Without a graph.
/// REQUIRES: tables.Check() does not throw.
at::Tensor AttendBlocks(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                        const CachedLayer& cache, const BlockTables& tables, const AttentionRule& rule = {});

/// Returns whether the work that AttendBlocks() gives this device for sequences of one token each depends on their
/// positions and blocks only in what the device reads. So it can be recorded (device/recorder.h).
bool RepeatsAttendBlocks(const HeadLayout& layout, at::ScalarType type, at::Device device);

}  // namespace millrace::engine::ops
