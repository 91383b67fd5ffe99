#include "millrace/plan/model/family_layers.h"

namespace millrace::plan {
namespace {

using Kind = LayerKind;

void DescribeGpt2(const Json& json, ModelShape& model) {
  ReadSizes(json, kGptNames, 1024, model);
  model.intermediate_size = IntOr(json, kGptNames.inner, 4 * model.hidden_size);
  const std::int64_t hidden = model.hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {model.vocab_size}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {model.max_positions}}};
  model.block = Join({{norm}, PlainAttention(model, true, true), {norm}, PlainMlp(model, true)});
  model.head = {norm, TokenHead(model, false, FlagOr(json, "tie_word_embeddings", true))};
  model.dropouts = 2 * Drops(json, "resid_pdrop", 0.1) + Drops(json, "attn_pdrop", 0.1);
}

}  // namespace

FamilyLayers Gpt2Layers() {
  static constexpr std::string_view kTypes[] = {"gpt2"};
  return {.model_types = kTypes, .describe = DescribeGpt2};
}

}  // namespace millrace::plan
