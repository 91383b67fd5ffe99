// Keys and values of earlier tokens, so that generation computes each token once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "millrace/engine/ops/cached_attention.h"

namespace millrace::engine {

class RecordedSteps;  // models/recorded_steps.h

/// The type of a cache's keys and values.
enum class KvNumbers {
  kComputed,  ///< in the type that the model computes in
  kInt8,      ///< as 8-bit integers, with a scale for each token and head
};

/// The sizes of a cache.
struct KvCacheShape {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  std::int64_t blocks = 0, block_tokens = 0;
};

/// A pool of blocks for the keys and values of sequences, allocated at construction. Its user decides which blocks
/// belong to which sequence, and says so in each step (Model::Step). Not movable: recorded steps have its address.
/// Not thread-safe.
class KvCache {
 public:
  KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  const KvCacheShape& shape() const { return shape_; }
  const ops::CachedLayer& Layer(std::int64_t layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  /// Returns where the norms of a layer's rows are kept, which depend on its weights only: undefined until somebody
  /// puts them there. `layer`: LowRankAdapters::Module::dropout_site. So weights with magnitudes must not change while
  /// a cache lives.
  at::Tensor& RowNorms(std::uint64_t layer) { return row_norms_[layer]; }
  /// Returns where the model keeps what it recorded of its steps with this cache. Null until it puts something there.
  std::shared_ptr<RecordedSteps>& Recorded() { return recorded_; }

 private:
  const KvCacheShape shape_;
  std::vector<ops::CachedLayer> layers_;
  std::map<std::uint64_t, at::Tensor> row_norms_;
  std::shared_ptr<RecordedSteps> recorded_;
};

/// Rows of equal length with a cache of their own: one block for each row. Not thread-safe.
class CachedRows {
 public:
  /// `shape`: blocks are rows, and block_tokens is the number of tokens that a row may get.
  CachedRows(const KvCacheShape& shape, at::ScalarType dtype, at::Device device);
  KvCache& cache() { return cache_; }
  const ops::BlockTables& tables() const { return tables_; }
  std::int64_t length() const { return length_; }
  /// Moves the end of all rows: behind tokens that were stored, or back.
  void SetLength(std::int64_t length) { length_ = length; }

 private:
  KvCache cache_;
  ops::BlockTables tables_;
  std::int64_t length_ = 0;
};

}  // namespace millrace::engine
