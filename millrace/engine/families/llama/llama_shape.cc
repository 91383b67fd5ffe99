#include "millrace/engine/config/common_layers.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {

plan::ModelShape LlamaConfig::Shape() const {
  using Kind = plan::LayerKind;
  plan::ModelShape model = ShapeWithoutLayers();
  const std::int64_t hidden = hidden_size, inner = intermediate_size;
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {vocab_size}, .name = "model.embed_tokens"}};
  model.block = {{.kind = Kind::kNorm, .in = hidden, .name = "model.layers.{}.input_layernorm"},
                 {.kind = Kind::kColumns,
                  .in = hidden,
                  .outputs = {model.queries(), model.keys(), model.keys()},
                  .heads = {num_heads, num_kv_heads, num_kv_heads},
                  .bias = qkv_bias,
                  .cheap_input = true,
                  .name = "model.layers.{}.self_attn.q_proj",
                  .output_names = {"model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj",
                                   "model.layers.{}.self_attn.v_proj"}}};
  if (qk_norm) {
    model.block.push_back({.kind = Kind::kHeadNorm,
                           .in = model.head_dim,
                           .outputs = {model.queries()},
                           .name = "model.layers.{}.self_attn.q_norm"});
    model.block.push_back({.kind = Kind::kHeadNorm,
                           .in = model.head_dim,
                           .outputs = {model.keys()},
                           .heads = {num_kv_heads},
                           .name = "model.layers.{}.self_attn.k_norm"});
  }
  const plan::Layers rest = {{.kind = Kind::kAttention},
                             {.kind = Kind::kRows,
                              .in = model.queries(),
                              .outputs = {hidden},
                              .bias = output_bias,
                              .name = "model.layers.{}.self_attn.o_proj"},
                             {.kind = Kind::kNorm, .in = hidden, .name = "model.layers.{}.post_attention_layernorm"},
                             {.kind = Kind::kColumns,
                              .in = hidden,
                              .outputs = {inner, inner},
                              .bias = mlp_bias,
                              .cheap_input = true,
                              .name = "model.layers.{}.mlp.gate_proj",
                              .output_names = {"model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"}},
                             {.kind = Kind::kGated, .in = inner},
                             {.kind = Kind::kRows,
                              .in = inner,
                              .outputs = {hidden},
                              .bias = mlp_bias,
                              .cheap_input = true,
                              .name = "model.layers.{}.mlp.down_proj"}};
  model.block.insert(model.block.end(), rest.begin(), rest.end());
  model.head = {{.kind = Kind::kNorm, .in = hidden, .name = "model.norm"},
                plan::TokenHead(model, "lm_head", false, tie_word_embeddings)};
  model.dropouts = attention_dropout > 0;
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) windows.push_back(WindowOf(layer));
  model.LimitAttention(windows);
  return model;
}

}  // namespace millrace::engine
