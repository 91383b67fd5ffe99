#include "millrace/plan/model/model_shape.h"

#include <numeric>

namespace millrace::plan {
namespace {

using Kind = LayerKind;
using Layers = std::vector<Layer>;

constexpr double kMaskedShare = 0.15;  // Devlin et al. 2018

std::int64_t IntOr(const Json& json, std::string_view key, std::int64_t absent) {
  const Json* value = JsonFind(json, key);
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : absent;
}
bool FlagOr(const Json& json, std::string_view key, bool absent) {
  const Json* value = JsonFind(json, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : absent;
}
bool Drops(const Json& json, std::string_view key, double absent) {
  const Json* value = JsonFind(json, key);
  return (value != nullptr && value->is_number() ? value->get<double>() : absent) > 0;
}

Layer TokenHead(const ModelShape& model, bool bias, bool tied) {
  return {.kind = Kind::kTokenHead,
          .in = model.hidden_size,
          .outputs = {model.vocab_size},
          .bias = bias,
          .cheap_input = true,
          .tied = tied};
}

void DescribeLlama(const Json& json, ModelShape& model) {
  const std::string_view type = model.family;
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

/// The layers of an attention and an MLP with an activation, as GPT-2, GPT-J and BERT have them.
Layers PlainAttention(const ModelShape& model, bool bias, bool cheap_input) {
  const std::int64_t h = model.hidden_size;
  return {{.kind = Kind::kColumns, .in = h, .outputs = {h, h, h}, .bias = bias, .cheap_input = cheap_input},
          {.kind = Kind::kAttention},
          {.kind = Kind::kRows, .in = h, .outputs = {h}, .bias = bias}};
}
Layers PlainMlp(const ModelShape& model, bool cheap_input) {
  const std::int64_t h = model.hidden_size, inner = model.intermediate_size;
  return {{.kind = Kind::kColumns, .in = h, .outputs = {inner}, .bias = true, .cheap_input = cheap_input},
          {.kind = Kind::kActivation, .in = inner},
          {.kind = Kind::kRows, .in = inner, .outputs = {h}, .bias = true, .cheap_input = true}};
}
Layers Join(std::initializer_list<Layers> parts) {
  Layers all;
  for (const Layers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void DescribeGpt2(const Json& json, ModelShape& model) {
  const std::int64_t hidden = model.hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {model.max_positions}}};
  model.block = Join({{norm}, PlainAttention(model, true, true), {norm}, PlainMlp(model, true)});
  model.head = {norm, TokenHead(model, false, FlagOr(json, "tie_word_embeddings", true))};
  model.dropouts = 2 * Drops(json, "resid_pdrop", 0.1) + Drops(json, "attn_pdrop", 0.1);
}

void DescribeGptj(const Json& json, ModelShape& model) {
  const std::int64_t hidden = model.hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}}};
  Layers mlp = PlainMlp(model, true), attention = PlainAttention(model, false, true);
  mlp.back().declared_last = true;
  attention.front().shares_input = true;
  model.block = Join({{norm}, mlp, attention});
  model.head = {norm, TokenHead(model, true, FlagOr(json, "tie_word_embeddings", false))};
  model.adds_once = true;
  model.dropouts = 2 * Drops(json, "resid_pdrop", 0) + Drops(json, "attn_pdrop", 0);
}

void DescribeBert(const Json& json, ModelShape& model) {
  const std::int64_t hidden = model.hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  const auto whole = [&](std::int64_t out) {
    return Layer{.kind = Kind::kWhole, .in = hidden, .outputs = {out}, .bias = true, .predicted_only = true};
  };
  const Json* architectures = JsonFind(json, "architectures");
  const std::string named = architectures != nullptr ? architectures->dump() : "";
  const bool classifies = named.contains("Classification"), masked_only = named.contains("MaskedLM");
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {model.max_positions}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {IntOr(json, "type_vocab_size", 2)}},
                     norm};
  // Of the norms behind attention and MLP, the second one's output is the next block's input.
  model.block = Join({PlainAttention(model, true, false), {norm}, PlainMlp(model, false), {norm}});
  model.head = {{.kind = Kind::kJoinRows, .in = hidden}};
  if (!masked_only) model.head.push_back(whole(hidden));
  if (!classifies) {
    model.head.push_back(whole(hidden));
    model.head.push_back({.kind = Kind::kNorm, .in = hidden, .bias = true, .predicted_only = true});
    Layer tokens = TokenHead(model, true, true);
    tokens.predicted_only = true;
    model.head.push_back(std::move(tokens));
  }
  if (!masked_only) model.head.push_back(whole(classifies ? IntOr(json, "num_labels", 2) : 2));
  model.causal = false;
  model.predicted = kMaskedShare;
  model.stream = 1;
  model.dropouts = 2 * Drops(json, "hidden_dropout_prob", 0.1) + Drops(json, "attention_probs_dropout_prob", 0.1);
}

struct FamilyShape {
  std::string_view model_type;
  void (*describe)(const Json& json, ModelShape& model);
};
constexpr FamilyShape kFamilies[] = {{"llama", DescribeLlama}, {"mistral", DescribeLlama}, {"qwen2", DescribeLlama},
                                     {"qwen3", DescribeLlama}, {"gpt2", DescribeGpt2},     {"gptj", DescribeGptj},
                                     {"bert", DescribeBert}};

/// Reads the sizes, which families name in two ways.
void ReadSizes(const Json& json, ModelShape& model) {
  const bool is_gpt = model.family.starts_with("gpt");
  const auto size = [&](std::string_view name, std::string_view of_gpt, std::int64_t absent) {
    return IntOr(json, is_gpt ? of_gpt : name, absent);
  };
  model.vocab_size = IntOr(json, "vocab_size", 0);
  model.hidden_size = size("hidden_size", "n_embd", 0);
  model.num_layers = size("num_hidden_layers", "n_layer", 0);
  model.num_heads = size("num_attention_heads", "n_head", 0);
  model.num_kv_heads = size("num_key_value_heads", "", model.num_heads);
  model.intermediate_size = size("intermediate_size", "n_inner", is_gpt ? 4 * model.hidden_size : 0);
  model.max_positions = size("max_position_embeddings", "n_positions", model.family == "gpt2" ? 1024 : 2048);
  const std::int64_t even = model.num_heads > 0 ? model.hidden_size / model.num_heads : 0;
  model.head_dim = size("head_dim", "", model.family == "qwen3" ? 128 : even);
}

std::int64_t Elements(const Layer& layer) {
  switch (layer.kind) {
    case Kind::kNorm:
      return layer.in * (layer.bias ? 2 : 1);
    case Kind::kHeadNorm:
      return layer.in;
    case Kind::kAttention:
    case Kind::kActivation:
    case Kind::kGated:
    case Kind::kJoinRows:
      return 0;
    default:
      return layer.out() * ((layer.tied ? 0 : layer.in) + (layer.bias ? 1 : 0));
  }
}

}  // namespace

std::int64_t Layer::out() const { return std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0}); }

bool ModelShape::tied() const {
  for (const Layer& layer : head) {
    if (layer.tied) return true;
  }
  return false;
}

std::int64_t ModelShape::ParameterCount() const {
  const auto count = [](const Layers& part) {
    return std::accumulate(part.begin(), part.end(), std::int64_t{0},
                           [](std::int64_t sum, const Layer& layer) { return sum + Elements(layer); });
  };
  return count(embedding) + num_layers * count(block) + count(head);
}

std::int64_t ModelShape::Multiplied(const std::vector<Layer>& part) const {
  std::int64_t sum = 0;
  for (const Layer& layer : part) {
    const bool multiplies = layer.kind == Kind::kColumns || layer.kind == Kind::kRows || layer.kind == Kind::kWhole ||
                            layer.kind == Kind::kTokenHead;
    if (multiplies) sum += layer.in * layer.out();
  }
  return sum;
}

double ModelShape::FlopsPerToken(double length) const {
  return 6 * static_cast<double>(num_layers * Multiplied(block) + Multiplied(head)) +
         12 * static_cast<double>(num_layers * queries()) * length;
}

Result<ModelShape> ParseModelShape(const Json& config, std::string_view what) {
  ModelShape model;
  model.family = MR_TRY(JsonString(config, "model_type"));
  const FamilyShape* family = nullptr;
  for (const FamilyShape& each : kFamilies) {
    if (each.model_type == model.family) family = &each;
  }
  if (family == nullptr) {
    return Fail(Code::kUnsupported,
                "{}: model_type \"{}\" cannot be planned; llama, mistral, qwen2, qwen3, gpt2, gptj "
                "and bert can",
                what, model.family);
  }
  ReadSizes(config, model);
  if (model.vocab_size < 1 || model.hidden_size < 1 || model.num_layers < 1 || model.num_heads < 1 ||
      model.num_kv_heads < 1 || model.head_dim < 1 || model.intermediate_size < 1) {
    return Fail(Code::kInvalidArgument, "{}: a size is missing or not positive", what);
  }
  family->describe(config, model);
  return model;
}

}  // namespace millrace::plan
