#include "millrace/engine/families/gptj/gptj_config.h"
#include "millrace/plan/model/common_layers.h"

namespace millrace::engine {

plan::ModelShape GptjConfig::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  plan::ModelShape model = ShapeWithoutLayers();
  const Layer norm{.kind = Kind::kNorm, .in = hidden_size, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden_size, .outputs = {vocab_size}}};
  plan::Layers attention = plan::PlainAttention(model, false, true);
  attention.front().shares_input = true;
  model.block = plan::Join({{norm}, plan::PlainMlp(model, true), attention});
  model.head = {norm, plan::TokenHead(model, true, tie_word_embeddings)};
  model.adds_once = true;
  model.dropouts = 2 * (residual_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
