#include "millrace/engine/families/bert/bert_config.h"
#include "millrace/plan/model/common_layers.h"

namespace millrace::engine {

plan::ModelShape BertConfig::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  constexpr double kMaskedShare = 0.15;  // Devlin et al. 2018
  plan::ModelShape model = ShapeWithoutLayers();
  const std::int64_t hidden = hidden_size;
  const Layer norm{.kind = Kind::kNorm, .in = hidden, .bias = true};
  const auto whole = [&](std::int64_t out) {
    return Layer{.kind = Kind::kWhole, .in = hidden, .outputs = {out}, .bias = true, .predicted_only = true};
  };
  model.embedding = {{.kind = Kind::kTokenTable, .in = hidden, .outputs = {vocab_size}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {max_positions}},
                     {.kind = Kind::kTable, .in = hidden, .outputs = {segments}},
                     norm};
  // Of the norms behind attention and MLP, the second one's output is the next block's input.
  model.block = plan::Join({plan::PlainAttention(model, true, false), {norm}, plan::PlainMlp(model, false), {norm}});
  model.head = {{.kind = Kind::kJoinRows, .in = hidden}};
  if (predicts_rows()) model.head.push_back(whole(hidden));
  if (predicts_tokens()) {
    model.head.push_back(whole(hidden));
    model.head.push_back({.kind = Kind::kNorm, .in = hidden, .bias = true, .predicted_only = true});
    Layer tokens = plan::TokenHead(model, true, true);
    tokens.predicted_only = true;
    model.head.push_back(std::move(tokens));
  }
  if (predicts_rows()) model.head.push_back(whole(heads == BertHeads::kClassification ? num_labels : 2));
  model.causal = false;
  model.predicted = kMaskedShare;
  model.stream = 1;
  model.adds_row_loss = heads == BertHeads::kPreTraining;
  model.dropouts = 2 * (hidden_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
