#include "millrace/checkpoint/convert/meta_llama_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace::checkpoint {
namespace {

struct NamePair {
  std::string_view meta, huggingface;
};
constexpr NamePair kOfModel[] = {{"tok_embeddings.weight", "model.embed_tokens.weight"},
                                 {"norm.weight", "model.norm.weight"},
                                 {"output.weight", "lm_head.weight"}};
constexpr std::string_view kQueries = "self_attn.q_proj", kKeys = "self_attn.k_proj";
/// Modules of a layer. Newer versions of torchtitan have the three of attention below qkv_linear.
constexpr NamePair kOfLayer[] = {{"attention.wq", kQueries},
                                 {"attention.wk", kKeys},
                                 {"attention.wv", "self_attn.v_proj"},
                                 {"attention.qkv_linear.wq", kQueries},
                                 {"attention.qkv_linear.wk", kKeys},
                                 {"attention.qkv_linear.wv", "self_attn.v_proj"},
                                 {"attention.wo", "self_attn.o_proj"},
                                 {"attention.q_norm", "self_attn.q_norm"},
                                 {"attention.k_norm", "self_attn.k_norm"},
                                 {"feed_forward.w1", "mlp.gate_proj"},
                                 {"feed_forward.w2", "mlp.down_proj"},
                                 {"feed_forward.w3", "mlp.up_proj"},
                                 {"attention_norm", "input_layernorm"},
                                 {"ffn_norm", "post_attention_layernorm"}};
/// Families whose code at Meta, Mistral and torchtitan turns neighbouring rows together.
constexpr std::string_view kInterleaved[] = {"llama", "mistral", "ministral"};

}  // namespace

std::optional<TranslatedName> TranslateMetaName(std::string_view name, const engine::ModelConfig& config) {
  for (const NamePair& pair : kOfModel) {
    if (name == pair.meta) return TranslatedName{std::string(pair.huggingface)};
  }
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view layer = name.substr(0, digits), rest = name.substr(std::min(digits + 1, name.size()));
  const std::size_t dot = rest.rfind('.');
  if (layer.empty() || dot == rest.npos) return std::nullopt;
  const auto pair = std::ranges::find(kOfLayer, rest.substr(0, dot), &NamePair::meta);
  if (pair == std::end(kOfLayer)) return std::nullopt;
  TranslatedName translated{fmt::format("model.layers.{}.{}{}", layer, pair->huggingface, rest.substr(dot))};
  if (std::ranges::find(kInterleaved, config.family()) != std::end(kInterleaved)) {
    if (pair->huggingface == kQueries) translated.interleaved_heads = config.sizes().num_heads;
    if (pair->huggingface == kKeys) translated.interleaved_heads = config.sizes().num_kv_heads;
  }
  return translated;
}

}  // namespace millrace::checkpoint
