#include "millrace/engine/config/common_layers.h"
#include "millrace/engine/families/gptj/gptj_config.h"

namespace millrace::engine {

plan::ModelShape GptjConfig::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  plan::ModelShape model = ShapeWithoutLayers();
  const auto norm = [&](std::string name) {
    return Layer{.kind = Kind::kNorm, .in = hidden_size, .bias = true, .name = std::move(name)};
  };
  model.embedding = {
      {.kind = Kind::kTokenTable, .in = hidden_size, .outputs = {vocab_size}, .name = "transformer.wte"}};
  const std::string block = "transformer.h.{}.attn.";
  plan::Layers attention = plan::PlainAttention(model,
                                                {.in = block + "q_proj",
                                                 .out = block + "out_proj",
                                                 .outputs = {block + "q_proj", block + "k_proj", block + "v_proj"}},
                                                false, true);
  attention.front().shares_input = true;
  model.block = plan::Join({{norm("transformer.h.{}.ln_1")},
                            plan::PlainMlp(model, {"transformer.h.{}.mlp.fc_in", "transformer.h.{}.mlp.fc_out"}, true),
                            attention});
  model.head = {norm("transformer.ln_f"), plan::TokenHead(model, "lm_head", true, tie_word_embeddings)};
  model.adds_once = true;
  model.dropouts = 2 * (residual_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
