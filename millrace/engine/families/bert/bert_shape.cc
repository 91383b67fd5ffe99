#include "millrace/engine/config/common_layers.h"
#include "millrace/engine/families/bert/bert_config.h"

namespace millrace::engine {

plan::ModelShape BertConfig::Shape() const {
  using Kind = plan::LayerKind;
  using plan::Layer;
  constexpr double kMaskedShare = 0.15;  // Devlin et al. 2018
  plan::ModelShape model = ShapeWithoutLayers();
  const std::int64_t hidden = hidden_size;
  const auto norm = [&](std::string name) {
    return Layer{.kind = Kind::kNorm, .in = hidden, .bias = true, .name = std::move(name)};
  };
  const auto table = [&](Kind kind, std::int64_t rows, const std::string& name) {
    return Layer{.kind = kind, .in = hidden, .outputs = {rows}, .name = "bert.embeddings." + name};
  };
  const auto whole = [&](std::int64_t out, std::string name) {
    return Layer{.kind = Kind::kWhole,
                 .in = hidden,
                 .outputs = {out},
                 .bias = true,
                 .predicted_only = true,
                 .name = std::move(name)};
  };
  model.embedding = {table(Kind::kTokenTable, vocab_size, "word_embeddings"),
                     table(Kind::kTable, max_positions, "position_embeddings"),
                     table(Kind::kTable, segments, "token_type_embeddings"), norm("bert.embeddings.LayerNorm")};
  // A norm follows attention, and another one the MLP. The output of the second is the next block's input.
  const std::string block = "bert.encoder.layer.{}.", self = block + "attention.self.";
  model.block = plan::Join({plan::PlainAttention(model,
                                                 {.in = self + "query",
                                                  .out = block + "attention.output.dense",
                                                  .outputs = {self + "query", self + "key", self + "value"}},
                                                 true, false),
                            {norm(block + "attention.output.LayerNorm")},
                            plan::PlainMlp(model, {block + "intermediate.dense", block + "output.dense"}, false),
                            {norm(block + "output.LayerNorm")}});
  model.head = {{.kind = Kind::kJoinRows, .in = hidden}};
  if (predicts_rows()) model.head.push_back(whole(hidden, "bert.pooler.dense"));
  if (predicts_tokens()) {
    model.head.push_back(whole(hidden, "cls.predictions.transform.dense"));
    model.head.push_back(norm("cls.predictions.transform.LayerNorm"));
    model.head.back().predicted_only = true;
    Layer tokens = plan::TokenHead(model, "cls.predictions", true, true);
    tokens.predicted_only = true;
    model.head.push_back(std::move(tokens));
  }
  const bool classifies = heads == BertHeads::kClassification;
  if (predicts_rows()) {
    model.head.push_back(classifies ? whole(num_labels, "classifier") : whole(2, "cls.seq_relationship"));
    model.head.back().predicts = true;
  }
  model.causal = false;
  model.predicted = kMaskedShare;
  model.stream = 1;
  model.adds_row_loss = heads == BertHeads::kPreTraining;
  model.dropouts = 2 * (hidden_dropout > 0) + (attention_dropout > 0);
  return model;
}

}  // namespace millrace::engine
