#include "millrace/engine/config/common_layers.h"
#include "millrace/engine/families/gpt2/gpt2_config.h"

namespace millrace::engine {

plan::ModelShape Gpt2Config::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  plan::ModelShape model = ShapeWithoutLayers();
  const auto norm = [&](std::string name) {
    return Layer{.kind = Kind::kNorm, .in = hidden_size, .bias = true, .name = std::move(name)};
  };
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden_size, .outputs = {vocab_size}, .name = "transformer.wte"},
                     {.kind = Kind::kTable, .in = hidden_size, .outputs = {max_positions}, .name = "transformer.wpe"}};
  model.block = plan::Join(
      {{norm("transformer.h.{}.ln_1")},
       plan::PlainAttention(model, {"transformer.h.{}.attn.c_attn", "transformer.h.{}.attn.c_proj"}, true, true),
       {norm("transformer.h.{}.ln_2")},
       plan::PlainMlp(model, {"transformer.h.{}.mlp.c_fc", "transformer.h.{}.mlp.c_proj"}, true)});
  if (classifies) {
    // One token of each row is predicted. A guess: a row of sentences has about 64.
    model.predicted = 1.0 / 64;
    Layer last_norm = norm("transformer.ln_f");
    last_norm.predicted_only = true;
    model.head = {{.kind = Kind::kJoinRows, .in = hidden_size},
                  std::move(last_norm),
                  {.kind = Kind::kWhole,
                   .in = hidden_size,
                   .outputs = {num_labels},
                   .predicted_only = true,
                   .predicts = true,
                   .name = "score"}};
  } else {
    model.head = {norm("transformer.ln_f"), plan::TokenHead(model, "lm_head", false, tie_word_embeddings)};
  }
  model.dropouts = 2 * (residual_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
