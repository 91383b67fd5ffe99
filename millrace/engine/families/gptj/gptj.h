// GPT-J (Wang, Komatsuzaki 2021): attention and MLP of a block read the same norm and are added together; neighbouring
// dimensions are rotated; the LM head has a bias. Names and numerics are those of transformers' GPTJForCausalLM.
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

class GptjConfig final : public ModelConfig {
 public:
  std::int64_t vocab_size = 50400, hidden_size = 4096, num_layers = 28, num_heads = 16, max_positions = 2048;
  std::int64_t intermediate_size = 0;  ///< 0: 4 · hidden_size
  std::int64_t rotary_dim = 64;        ///< the first so many dimensions of a head are rotated
  std::string activation_name = "gelu_new";
  ops::Activation activation = ops::Activation::kGeluTanh;
  double layer_norm_eps = 1e-5, initializer_stddev = 0.02;
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  bool tie_word_embeddings = false;

  static Result<std::shared_ptr<GptjConfig>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return "gptj"; }
  ModelSizes sizes() const override;
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;
  double initializer_range() const override { return initializer_stddev; }
  std::unique_ptr<Model> Build(std::shared_ptr<const ModelConfig> self, LayerFactory& make) const override;
};

ModelFamily GptjFamily();

}  // namespace millrace::engine
