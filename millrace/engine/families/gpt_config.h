// The part of the configuration that GPT-2 and GPT-J share: sizes, activation, dropout, and their keys in config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/activation.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_family.h"

namespace millrace::engine {

/// Returns the config.json of a new model. intermediate_size 0 is four times the hidden size.
Json NewGptModel(std::string_view model_type, const ModelSizes& sizes);

/// A family derives it, and sets its defaults in the constructor.
class GptConfig : public ModelConfig {
 public:
  std::int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, num_heads = 0, max_positions = 0;
  std::int64_t intermediate_size = 0;  ///< 0: 4 · hidden_size
  std::string activation_name = "gelu_new";
  Activation activation = Activation::kGeluTanh;
  double layer_norm_eps = 1e-5, initializer_stddev = 0.02;
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  bool tie_word_embeddings = true;

  ModelSizes sizes() const final;
  double initializer_range() const final { return initializer_stddev; }
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;

 protected:
  /// Sets the members above from the keys that are there. Others keep their values.
  Status ReadShared(const Json& json, std::string_view what);
};

}  // namespace millrace::engine
