#include "millrace/engine/families/gpt2/gpt2_config.h"
#include "millrace/plan/model/common_layers.h"

namespace millrace::engine {

plan::ModelShape Gpt2Config::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  plan::ModelShape model = ShapeWithoutLayers();
  const Layer norm{.kind = Kind::kNorm, .in = hidden_size, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden_size, .outputs = {vocab_size}},
                     {.kind = Kind::kTable, .in = hidden_size, .outputs = {max_positions}}};
  model.block = plan::Join({{norm}, plan::PlainAttention(model, true, true), {norm}, plan::PlainMlp(model, true)});
  model.head = {norm, plan::TokenHead(model, false, tie_word_embeddings)};
  model.dropouts = 2 * (residual_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
