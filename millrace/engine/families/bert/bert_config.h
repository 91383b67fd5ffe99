// BERT (Devlin et al. 2018): an encoder whose tokens see the whole row, with learned positions, segments, and norms
// after the residual additions. Names and numerics are those of transformers' BertForPreTraining, BertForMaskedLM and
// BertForSequenceClassification, or of BertModel, which has none; config.json's `architectures` says which heads there
// are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/activation.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_family.h"

namespace millrace::engine {

/// The heads of a model. kPreTraining predicts masked tokens, and whether the second segment follows the first one.
/// kMaskedLm predicts masked tokens. kClassification predicts a class of each row. kNone predicts nothing: the model
/// makes embeddings.
enum class BertHeads { kPreTraining, kMaskedLm, kClassification, kNone };

class BertConfig final : public ModelConfig {
 public:
  std::int64_t vocab_size = 30522, hidden_size = 768, intermediate_size = 3072, num_layers = 12, num_heads = 12;
  std::int64_t max_positions = 512, segments = 2;
  std::int64_t num_labels = 2;  ///< of kClassification
  std::string activation_name = "gelu";
  Activation activation = Activation::kGelu;
  double layer_norm_eps = 1e-12, initializer_stddev = 0.02;
  double hidden_dropout = 0.1, attention_dropout = 0.1, classifier_dropout = 0.1;
  BertHeads heads = BertHeads::kPreTraining;

  /// Errors: kUnsupported on decoders, relative positions, an untied LM head, and other heads.
  static Result<std::shared_ptr<BertConfig>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return "bert"; }
  ModelSizes sizes() const override;
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;
  double initializer_range() const override { return initializer_stddev; }
  bool generates() const override { return false; }
  bool predicts_tokens() const override { return heads == BertHeads::kPreTraining || heads == BertHeads::kMaskedLm; }
  bool predicts_rows() const override {
    return heads == BertHeads::kPreTraining || heads == BertHeads::kClassification;
  }
  std::string_view class_layer() const override { return "classifier"; }
  plan::ModelShape Shape() const override;
};

ModelFamily BertFamily();

}  // namespace millrace::engine
