#include "millrace/engine/kv_cache.h"

namespace millrace::engine {

KvCache::KvCache(const ModelConfig& config, std::int64_t rows, std::int64_t capacity, at::ScalarType dtype,
                 at::Device device)
    : capacity_(capacity) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    keys_.push_back(at::empty({rows, config.num_kv_heads, capacity, config.HeadDim()}, options));
    values_.push_back(at::empty({rows, config.num_kv_heads, capacity, config.HeadDim()}, options));
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
