#include "millrace/plan/model/family_layers.h"

namespace millrace::plan {
namespace {

using Kind = LayerKind;

void DescribeLlama(const Json& json, ModelShape& model) {
  const std::string_view type = model.family;
  ReadSizes(json, {}, 2048, model);
  model.num_kv_heads = IntOr(json, "num_key_value_heads", model.num_heads);
  model.head_dim = IntOr(json, "head_dim", type == "qwen3" ? 128 : model.head_dim);
  const std::int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  const bool attention_bias = FlagOr(json, "attention_bias", false), mlp_bias = FlagOr(json, "mlp_bias", false);
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}}};
  model.block = {{.kind = Kind::kNorm, .in = hidden},
                 {.kind = Kind::kColumns,
                  .in = hidden,
                  .outputs = {model.queries(), model.keys(), model.keys()},
                  .heads = {model.num_heads, model.num_kv_heads, model.num_kv_heads},
                  .bias = attention_bias || type == "qwen2",
                  .cheap_input = true}};
  if (type == "qwen3") {
    model.block.push_back({.kind = Kind::kHeadNorm, .in = model.head_dim, .outputs = {model.queries()}});
    model.block.push_back(
        {.kind = Kind::kHeadNorm, .in = model.head_dim, .outputs = {model.keys()}, .heads = {model.num_kv_heads}});
  }
  const Layers rest = {
      {.kind = Kind::kAttention},
      {.kind = Kind::kRows, .in = model.queries(), .outputs = {hidden}, .bias = attention_bias && type != "qwen2"},
      {.kind = Kind::kNorm, .in = hidden},
      {.kind = Kind::kColumns, .in = hidden, .outputs = {inner, inner}, .bias = mlp_bias, .cheap_input = true},
      {.kind = Kind::kGated, .in = inner},
      {.kind = Kind::kRows, .in = inner, .outputs = {hidden}, .bias = mlp_bias, .cheap_input = true}};
  model.block.insert(model.block.end(), rest.begin(), rest.end());
  model.head = {{.kind = Kind::kNorm, .in = hidden},
                TokenHead(model, false, FlagOr(json, "tie_word_embeddings", false))};
  model.dropouts = Drops(json, "attention_dropout", 0);
}

}  // namespace

FamilyLayers LlamaLayers() {
  static constexpr std::string_view kTypes[] = {"llama", "mistral", "qwen2", "qwen3"};
  return {.model_types = kTypes, .describe = DescribeLlama};
}

}  // namespace millrace::plan
