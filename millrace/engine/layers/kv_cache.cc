#include "millrace/engine/layers/kv_cache.h"

namespace millrace::engine {

KvCache::KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device) : capacity_(shape.capacity) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    keys_.push_back(at::empty({shape.rows, shape.kv_heads, shape.capacity, shape.head_dim}, options));
    values_.push_back(at::empty({shape.rows, shape.kv_heads, shape.capacity, shape.head_dim}, options));
  }
}

KvCache::LayerView KvCache::Append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values) {
  const std::int64_t count = keys.size(2);
  TORCH_CHECK(length_ + count <= capacity_, "KV cache of ", capacity_, " positions cannot take ", count, " after ",
              length_);
  keys_[layer].narrow(2, length_, count).copy_(keys);
  values_[layer].narrow(2, length_, count).copy_(values);
  return {keys_[layer].narrow(2, 0, length_ + count), values_[layer].narrow(2, 0, length_ + count)};
}

}  // namespace millrace::engine
