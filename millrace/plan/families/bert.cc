#include "millrace/plan/model/family_layers.h"

namespace millrace::plan {
namespace {

using Kind = LayerKind;

constexpr double kMaskedShare = 0.15;  // Devlin et al. 2018

void DescribeBert(const Json& json, ModelShape& model) {
  ReadSizes(json, {}, 2048, model);
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

}  // namespace

FamilyLayers BertLayers() {
  static constexpr std::string_view kTypes[] = {"bert"};
  return {.model_types = kTypes, .describe = DescribeBert};
}

}  // namespace millrace::plan
