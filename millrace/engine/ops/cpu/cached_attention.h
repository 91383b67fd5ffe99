// The loops of attention over keys and values in the blocks of a cache, over raw memory. The result of a query has the
// same bits whatever queries are beside it: each of its sums runs over the keys in their order.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cpu/simd.h"

namespace millrace::engine::cpu {

/// The blocks of one layer of a cache. T is float, Bf16, or std::int8_t with a scale for the key and for the value of
/// each token. A block has its keys in columns, so that a loop over keys reads neighbours.
template <class T>
struct CachedBlocks {
  T* keys;    ///< [blocks, kv_heads, head_dim, block_tokens]
  T* values;  ///< [blocks, kv_heads, block_tokens, head_dim]
  std::int64_t kv_heads, head_dim;
  std::int64_t block_tokens;  ///< a multiple of kKeyLanes
  /// [blocks, kv_heads, block_tokens]: an element is code · scale. Null unless T is std::int8_t.
  float *key_scales = nullptr, *value_scales = nullptr;

  std::int64_t offset(std::int64_t block, std::int64_t kv_head) const {
    return (block * kv_heads + kv_head) * block_tokens * head_dim;
  }
  std::int64_t scales_offset(std::int64_t block, std::int64_t kv_head) const {
    return (block * kv_heads + kv_head) * block_tokens;
  }
};
/// Keys that the loops take at a time.
constexpr std::int64_t kKeyLanes = 16;

/// Stores the key and the value of `count` tokens in one block, from its token `first` on. Their rows are `stride`
/// elements apart. T is S, or float or Bf16 where S is std::int8_t.
template <class S, class T>
void StoreInBlock(const CachedBlocks<S>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
                  const T* keys, const T* values, std::int64_t stride, std::int64_t count);

/// The keys that a query sees: positions [begin, end) of its sequence.
struct KeySpan {
  std::int64_t begin, end;
};

/// Queries that one call takes.
constexpr std::int64_t kMaxAttendingRows = 16;

/// Attention of some queries over the keys and values of one head of their sequence.
template <class T>
struct AttendBlocks {
  CachedBlocks<T> cache;
  const std::int32_t* table;  ///< the blocks of the sequence, in order
  std::int64_t kv_head;
  const float* queries;        ///< [rows, head_dim], scaled
  const KeySpan* visible;      ///< [rows]
  float softcap;               ///< of the scores: Capped(); 0: none
  std::int64_t rows;           ///< at most kMaxAttendingRows
  float* scores;               ///< [rows, scores_stride]: workspace
  std::int64_t scores_stride;  ///< at least ScoresStride() of the furthest end
  float* out;                  ///< [rows, head_dim]

  static std::int64_t ScoresStride(std::int64_t keys, std::int64_t block_tokens) {
    return (keys + block_tokens - 1) / block_tokens * block_tokens;
  }
  void Run() const;
};

}  // namespace millrace::engine::cpu
