#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/plan/model/common_layers.h"

namespace millrace::engine {

plan::ModelShape LlamaConfig::Shape() const {
  using Kind = plan::LayerKind;
  plan::ModelShape model = ShapeWithoutLayers();
  const std::int64_t hidden = hidden_size, inner = intermediate_size;
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {vocab_size}}};
  model.block = {{.kind = Kind::kNorm, .in = hidden},
                 {.kind = Kind::kColumns,
                  .in = hidden,
                  .outputs = {model.queries(), model.keys(), model.keys()},
                  .heads = {num_heads, num_kv_heads, num_kv_heads},
                  .bias = qkv_bias,
                  .cheap_input = true}};
  if (qk_norm) {
    model.block.push_back({.kind = Kind::kHeadNorm, .in = model.head_dim, .outputs = {model.queries()}});
    model.block.push_back(
        {.kind = Kind::kHeadNorm, .in = model.head_dim, .outputs = {model.keys()}, .heads = {num_kv_heads}});
  }
  const plan::Layers rest = {
      {.kind = Kind::kAttention},
      {.kind = Kind::kRows, .in = model.queries(), .outputs = {hidden}, .bias = output_bias},
      {.kind = Kind::kNorm, .in = hidden},
      {.kind = Kind::kColumns, .in = hidden, .outputs = {inner, inner}, .bias = mlp_bias, .cheap_input = true},
      {.kind = Kind::kGated, .in = inner},
      {.kind = Kind::kRows, .in = inner, .outputs = {hidden}, .bias = mlp_bias, .cheap_input = true}};
  model.block.insert(model.block.end(), rest.begin(), rest.end());
  model.head = {{.kind = Kind::kNorm, .in = hidden}, plan::TokenHead(model, false, tie_word_embeddings)};
  model.dropouts = attention_dropout > 0;
  return model;
}

}  // namespace millrace::engine
