#include "millrace/engine/config/common_layers.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {

plan::ModelShape LlamaConfig::Shape() const {
  using Kind = plan::LayerKind;
  plan::ModelShape model = ShapeWithoutLayers();
  const std::int64_t hidden = hidden_size, inner = intermediate_size;
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {vocab_size}, .name = "model.embed_tokens"}};
  const auto name = [](std::string_view part) { return "model.layers.{}." + std::string(part); };
  const auto norm = [&](std::string_view part) {
    return part.empty() ? plan::Layers{} : plan::Layers{{.kind = Kind::kNorm, .in = hidden, .name = name(part)}};
  };
  const auto names = [&](bool joined, std::string_view whole, std::vector<std::string> parts) {
    for (std::string& part : parts) part = name(joined ? whole : part);
    return parts;
  };
  // Without a norm in front, a layer keeps the residual stream itself.
  const BlockNorms& norms = variant.norms;
  const std::vector<std::string> qkv =
      names(variant.joined_qkv, "self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  const std::vector<std::string> gate_up =
      names(variant.joined_gate, "mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"});
  const plan::Layers attention = {{.kind = Kind::kColumns,
                                   .in = hidden,
                                   .outputs = {model.queries(), model.keys(), model.keys()},
                                   .heads = {num_heads, num_kv_heads, num_kv_heads},
                                   .bias = qkv_bias,
                                   .cheap_input = !norms.before_attention.empty(),
                                   .name = qkv.front(),
                                   .output_names = qkv}};
  plan::Layers head_norms;
  if (variant.qk_norm == QueryKeyNorm::kHeads) {
    head_norms = {
        {.kind = Kind::kHeadNorm, .in = model.head_dim, .outputs = {model.queries()}, .name = name("self_attn.q_norm")},
        {.kind = Kind::kHeadNorm,
         .in = model.head_dim,
         .outputs = {model.keys()},
         .heads = {num_kv_heads},
         .name = name("self_attn.k_norm")}};
  } else if (variant.qk_norm == QueryKeyNorm::kAllHeads) {
    head_norms = {{.kind = Kind::kAllHeadsNorm,
                   .in = model.queries(),
                   .outputs = {model.queries()},
                   .heads = {num_heads},
                   .name = name("self_attn.q_norm")},
                  {.kind = Kind::kAllHeadsNorm,
                   .in = model.keys(),
                   .outputs = {model.keys()},
                   .heads = {num_kv_heads},
                   .name = name("self_attn.k_norm")}};
  }
  const plan::Layers output = {{.kind = Kind::kAttention},
                               {.kind = Kind::kRows,
                                .in = model.queries(),
                                .outputs = {hidden},
                                .bias = output_bias,
                                .name = name("self_attn.o_proj")}};
  const plan::Layers mlp = {{.kind = Kind::kColumns,
                             .in = hidden,
                             .outputs = {inner, inner},
                             .bias = mlp_bias,
                             .cheap_input = !norms.before_mlp.empty(),
                             .name = gate_up.front(),
                             .output_names = gate_up},
                            {.kind = Kind::kGated, .in = inner},
                            {.kind = Kind::kRows,
                             .in = inner,
                             .outputs = {hidden},
                             .bias = mlp_bias,
                             .cheap_input = true,
                             .name = name("mlp.down_proj")}};
  model.block = plan::Join({norm(norms.before_attention), attention, head_norms, output, norm(norms.after_attention),
                            norm(norms.before_mlp), mlp, norm(norms.after_mlp)});
  model.head = {{.kind = Kind::kNorm, .in = hidden, .name = "model.norm"},
                plan::TokenHead(model, "lm_head", false, tie_word_embeddings)};
  model.dropouts = (attention_dropout > 0) + 2 * (variant.residual_dropout > 0);
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) windows.push_back(WindowOf(layer));
  model.LimitAttention(windows);
  return model;
}

}  // namespace millrace::engine
