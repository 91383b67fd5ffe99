#include "millrace/engine/layers/kv_cache.h"

namespace millrace::engine {

KvCache::KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device) : shape_(shape) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back(ops::MakeCachedLayer(shape.blocks, shape.kv_heads, shape.block_tokens, shape.head_dim, options));
  }
}

CachedRows::CachedRows(const KvCacheShape& shape, at::ScalarType dtype, at::Device device)
    : cache_(shape, dtype, device) {
  for (std::int32_t row = 0; row < shape.blocks; ++row) tables_.Add({&row, 1});
}

}  // namespace millrace::engine
