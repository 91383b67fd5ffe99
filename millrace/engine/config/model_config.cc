#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

plan::ModelShape ModelConfig::ShapeWithoutLayers() const {
  const ModelSizes size = sizes();
  plan::ModelShape shape;
  shape.family = family();
  shape.vocab_size = size.vocab_size;
  shape.hidden_size = size.hidden_size;
  shape.intermediate_size = size.intermediate_size;
  shape.num_layers = size.num_layers;
  shape.num_heads = size.num_heads;
  shape.num_kv_heads = size.num_kv_heads;
  shape.head_dim = size.head_dim;
  shape.max_positions = size.max_positions;
  return shape;
}

}  // namespace millrace::engine
