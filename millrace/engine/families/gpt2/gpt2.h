// GPT-2 (Radford et al. 2019): pre-norm decoder with learned positions, layer norms with biases, and GELU. Names and
// numerics are those of transformers' GPT2LMHeadModel, whose files hold the weights of linear layers transposed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model_config.h"
#include "millrace/engine/models/model_family.h"
#include "millrace/engine/ops/activation.h"

namespace millrace::engine {

class Gpt2Config final : public ModelConfig {
 public:
  std::int64_t vocab_size = 50257, hidden_size = 768, num_layers = 12, num_heads = 12, max_positions = 1024;
  std::int64_t intermediate_size = 0;  ///< 0: 4 · hidden_size
  std::string activation_name = "gelu_new";
  ops::Activation activation = ops::Activation::kGeluTanh;
  double layer_norm_eps = 1e-5, initializer_stddev = 0.02;
  double embedding_dropout = 0.1, attention_dropout = 0.1, residual_dropout = 0.1;
  bool tie_word_embeddings = true;

  /// Errors: kUnsupported on attention that is scaled otherwise.
  static Result<std::shared_ptr<Gpt2Config>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return "gpt2"; }
  ModelSizes sizes() const override;
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;
  double initializer_range() const override { return initializer_stddev; }
  std::unique_ptr<Model> Build(std::shared_ptr<const ModelConfig> self, LayerFactory& make) const override;
};

ModelFamily Gpt2Family();

}  // namespace millrace::engine
