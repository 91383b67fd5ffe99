#include "millrace/checkpoint/convert/megatron/megatron_names.h"

#include <algorithm>
#include <charconv>

namespace millrace::checkpoint {
namespace {

/// How the rows of a tensor are arranged.
enum class RowOrder {
  kSame,        ///< as in Hugging Face's tensor
  kVocabulary,  ///< the same, with padding behind
  kQkv,         ///< for each group: the queries of its heads, a key, a value
  kGateUp,      ///< the gate, then the other factor
};
struct TensorRule {
  std::string_view megatron;  ///< without ".weight" and ".bias"
  std::string_view llama, gpt2;
  RowOrder order = RowOrder::kSame;
  bool is_linear = false;  ///< GPT-2's files hold the transpose
};
constexpr TensorRule kModelRules[] = {
    {"embedding.word_embeddings", "model.embed_tokens", "transformer.wte", RowOrder::kVocabulary},
    {"embedding.position_embeddings", "", "transformer.wpe"},
    {"decoder.final_layernorm", "model.norm", "transformer.ln_f"},
    {"output_layer", "lm_head", "lm_head", RowOrder::kVocabulary},
};
constexpr std::string_view kQueryKeyValue = "self_attention.linear_qkv", kGateAndUp = "mlp.linear_fc1";
constexpr TensorRule kLayerRules[] = {
    {"input_layernorm", "input_layernorm", "ln_1"},
    {"self_attention.linear_qkv.layer_norm", "input_layernorm", "ln_1"},
    {kQueryKeyValue, "self_attn.", "attn.c_attn", RowOrder::kQkv, true},
    {"self_attention.linear_proj", "self_attn.o_proj", "attn.c_proj", RowOrder::kSame, true},
    {"self_attention.q_layernorm", "self_attn.q_norm", ""},
    {"self_attention.k_layernorm", "self_attn.k_norm", ""},
    {"pre_mlp_layernorm", "post_attention_layernorm", "ln_2"},
    {"mlp.linear_fc1.layer_norm", "post_attention_layernorm", "ln_2"},
    {kGateAndUp, "mlp.", "mlp.c_fc", RowOrder::kGateUp, true},
    {"mlp.linear_fc2", "mlp.down_proj", "mlp.c_proj", RowOrder::kSame, true},
};

/// A tensor's name without its last part, and that part: ".weight" or ".bias". Transformer Engine calls a norm inside a
/// linear layer "layer_norm_weight".
struct NameParts {
  std::string_view module, kind;
  char half = ' ';  ///< 'w' or 'v' if the halves of a gated MLP are tensors of their own
};
NameParts SplitKind(std::string_view name) {
  NameParts parts{.module = name};
  if (name.ends_with("_w") || name.ends_with("_v")) {
    parts.half = name.back();
    name.remove_suffix(2);
  }
  for (const std::string_view kind : {".weight", ".bias"}) {
    if (name.ends_with(kind)) return {name.substr(0, name.size() - kind.size()), kind, parts.half};
    const std::string fused = "layer_norm_" + std::string(kind.substr(1));
    if (name.ends_with("." + fused))
      return {name.substr(0, name.size() - kind.size()), kind, parts.half};  // "_weight" is as long as ".weight"
  }
  return parts;
}

std::uint64_t HeadRows(const MegatronModel& model) { return model.heads * model.head_dim; }

MappedTensor Whole(std::string name, std::uint64_t rows) {
  return {.name = std::move(name), .rows = rows, .spans = {{0, 0, rows}}};
}

/// Queries, keys and values. Llama has a tensor of each, GPT-2 one with the three, one after the other.
std::vector<MappedTensor> MapQkv(const MegatronModel& model, std::string_view kind) {
  const std::uint64_t dim = model.head_dim, key_rows = model.groups * dim;
  const std::uint64_t query = model.heads / model.groups * dim, group = query + 2 * dim;
  std::vector<MappedTensor> parts(3);
  for (std::uint64_t g = 0; g < model.groups; ++g) {
    parts[0].spans.push_back({g * group, g * query, query});
    parts[1].spans.push_back({g * group + query, g * dim, dim});
    parts[2].spans.push_back({g * group + query + dim, g * dim, dim});
  }
  if (model.family == MegatronFamily::kLlama) {
    for (std::size_t i = 0; i < 3; ++i) {
      parts[i].name = fmt::format("self_attn.{}_proj{}", "qkv"[i], kind);
      parts[i].rows = i == 0 ? HeadRows(model) : key_rows;
    }
    return parts;
  }
  MappedTensor all{.name = fmt::format("attn.c_attn{}", kind), .rows = HeadRows(model) + 2 * key_rows};
  for (std::size_t i = 0; i < 3; ++i) {
    for (RowSpan span : parts[i].spans) {
      span.to += i * HeadRows(model);
      all.spans.push_back(span);
    }
  }
  return {std::move(all)};
}

/// The first linear layer of a gated MLP.
std::vector<MappedTensor> MapGateUp(const MegatronModel& model, const NameParts& parts) {
  MappedTensor gate = Whole(fmt::format("mlp.gate_proj{}", parts.kind), model.intermediate);
  MappedTensor up = Whole(fmt::format("mlp.up_proj{}", parts.kind), model.intermediate);
  if (parts.half == 'w') return {std::move(gate)};
  if (parts.half == 'v') return {std::move(up)};
  up.spans[0].from = model.intermediate;
  return {std::move(gate), std::move(up)};
}

/// The rows of the tensor that the model's sizes demand; nothing if any number will do.
std::optional<std::uint64_t> RowsOf(const MegatronModel& model, const TensorRule& rule, const NameParts& parts) {
  if (rule.order == RowOrder::kQkv) return HeadRows(model) + 2 * model.groups * model.head_dim;
  if (rule.order == RowOrder::kGateUp) {
    const bool is_stacked = model.family == MegatronFamily::kLlama && parts.half == ' ';
    return (is_stacked ? 2 : 1) * model.intermediate;
  }
  if (rule.megatron == "embedding.position_embeddings") return std::nullopt;
  if (rule.megatron.ends_with("q_layernorm") || rule.megatron.ends_with("k_layernorm")) return model.head_dim;
  return model.hidden;
}

}  // namespace

MegatronName ParseMegatronName(std::string_view name) {
  while (name.starts_with("module.")) name.remove_prefix(7);
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers)) return {.rest = std::string(name)};
  name.remove_prefix(kLayers.size());
  std::uint64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.')
    return {.is_of_layer = true, .rest = std::string(name)};
  name.remove_prefix(static_cast<std::size_t>(end - name.data()) + 1);
  return {.is_of_layer = true, .layer = layer, .rest = std::string(name)};
}

std::string LayerPrefix(MegatronFamily family, std::uint64_t layer) {
  return family == MegatronFamily::kLlama ? fmt::format("model.layers.{}.", layer)
                                          : fmt::format("transformer.h.{}.", layer);
}

Result<std::vector<MappedTensor>> MapMegatronTensor(const MegatronModel& model, const MegatronName& name,
                                                    std::uint64_t rows) {
  const NameParts parts = SplitKind(name.rest);
  const bool is_llama = model.family == MegatronFamily::kLlama;
  const std::span<const TensorRule> rules = name.is_of_layer ? std::span<const TensorRule>(kLayerRules) : kModelRules;
  const auto rule = std::ranges::find(rules, parts.module, &TensorRule::megatron);
  const std::string_view to = rule == rules.end() ? "" : is_llama ? rule->llama : rule->gpt2;
  const bool is_half = parts.half != ' ';
  if (parts.kind.empty() || to.empty() || (is_half && (!is_llama || rule->order != RowOrder::kGateUp))) {
    return Fail(Code::kUnsupported,
                "the model's family has no tensor {}. To keep Megatron's names, import the folder "
                "with --from dcp",
                name.rest);
  }
  if (rule->order == RowOrder::kVocabulary) {
    if (rows < model.vocabulary)
      return Fail(Code::kCorrupt, "{} has {} rows, the vocabulary has {}", name.rest, rows, model.vocabulary);
    return std::vector{Whole(fmt::format("{}{}", to, parts.kind), model.vocabulary)};
  }
  if (const auto wanted = RowsOf(model, *rule, parts); wanted.value_or(rows) != rows)
    return Fail(Code::kCorrupt, "{} has {} rows, the model's sizes say {}", name.rest, rows, *wanted);
  std::vector<MappedTensor> mapped;
  if (rule->order == RowOrder::kQkv) {
    mapped = MapQkv(model, parts.kind);
  } else if (rule->order == RowOrder::kGateUp && is_llama) {
    mapped = MapGateUp(model, parts);
  } else {
    mapped = {Whole(fmt::format("{}{}", to, parts.kind), rows)};
  }
  for (MappedTensor& tensor : mapped) tensor.transposed = !is_llama && rule->is_linear && parts.kind == ".weight";
  return mapped;
}

}  // namespace millrace::checkpoint
