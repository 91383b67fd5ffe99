// Keys and values of earlier tokens, so that generation computes each token once.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace millrace::engine {

/// The sizes of a cache.
struct KvCacheShape {
  std::int64_t layers = 0, rows = 1, kv_heads = 0, head_dim = 0;
  std::int64_t capacity = 0;  ///< positions
};

/// Keys and values of the tokens seen so far. All rows have the same length. Grows up to `capacity` positions, which
/// are allocated at construction. Not thread-safe.
class KvCache {
 public:
  KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  /// Drops the positions from `length` on.
  void Truncate(std::int64_t length) { length_ = std::min(length_, length); }
  /// Views of one layer's keys and values [rows, kv_heads, positions, head_dim].
  struct LayerView {
    at::Tensor keys, values;
  };
  /// Appends keys and values [rows, kv_heads, n, head_dim] of one layer at the current end. Returns views of all
  /// positions so far, the new ones included. Call Advance once all layers have appended: it moves the end.
  /// Throws c10::Error beyond the capacity.
  LayerView Append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  void Advance(std::int64_t tokens) { length_ += tokens; }
  /// Returns where the norms of a layer's rows are kept, which depend on its weights only: undefined until somebody
  /// puts them there. `layer`: LowRankAdapters::Module::dropout_site. So weights with magnitudes must not change while
  /// a cache lives.
  at::Tensor& RowNorms(std::uint64_t layer) { return row_norms_[layer]; }

 private:
  std::int64_t length_ = 0, capacity_ = 0;
  std::vector<at::Tensor> keys_, values_;  ///< per layer [rows, kv_heads, capacity, head_dim]
  std::map<std::uint64_t, at::Tensor> row_norms_;
};

}  // namespace millrace::engine
