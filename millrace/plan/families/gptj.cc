#include "millrace/plan/model/family_layers.h"

namespace millrace::plan {
namespace {

using Kind = LayerKind;

void DescribeGptj(const Json& json, ModelShape& model) {
  ReadSizes(json, kGptNames, 2048, model);
  model.intermediate_size = IntOr(json, kGptNames.inner, 4 * model.hidden_size);
  const std::int64_t hidden = model.hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}}};
  Layers attention = PlainAttention(model, false, true);
  attention.front().shares_input = true;
  model.block = Join({{norm}, PlainMlp(model, true), attention});
  model.head = {norm, TokenHead(model, true, FlagOr(json, "tie_word_embeddings", false))};
  model.adds_once = true;
  model.dropouts = 2 * Drops(json, "resid_pdrop", 0) + Drops(json, "attn_pdrop", 0);
}

}  // namespace

FamilyLayers GptjLayers() {
  static constexpr std::string_view kTypes[] = {"gptj"};
  return {.model_types = kTypes, .describe = DescribeGptj};
}

}  // namespace millrace::plan
