// The Llama family (Touvron et al. 2023): pre-norm decoder with RMS norms, rotary positions, grouped-query attention
// and SwiGLU. Its members differ in few places: Mistral sees a window of keys, Ministral and Qwen in some layers only,
// Qwen2 has biases on queries, keys and values, Qwen3 norms queries and keys. Names and numerics are those of
// transformers' LlamaForCausalLM and its kin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/rope_config.h"

namespace millrace::engine {

/// The configuration of a model of this family.
class LlamaConfig final : public ModelConfig {
 public:
  std::string model_type = "llama";  ///< llama, mistral, ministral, qwen2 or qwen3
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  std::int64_t num_layers = 32, num_heads = 32, num_kv_heads = 32, head_dim = 0;  ///< head_dim 0: hidden/heads
  std::int64_t max_positions = 2048;
  double rms_norm_eps = 1e-5, rope_theta = 10000, initializer_stddev = 0.02, attention_dropout = 0;
  RopeScaling rope_scaling;
  std::int64_t sliding_window = 0;    ///< keys that a query sees in layers with a window; 0: no layer has one
  std::vector<bool> has_window = {};  ///< by layer; empty: all layers have the window, or none has
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool tie_word_embeddings = false;

  std::int64_t HeadDim() const { return head_dim ? head_dim : hidden_size / num_heads; }
  /// Returns how many keys a query sees in a layer; 0: all.
  std::int64_t WindowOf(std::int64_t layer) const {
    return has_window.empty() || has_window[static_cast<std::size_t>(layer)] ? sliding_window : 0;
  }
  RopeSizes rope_sizes() const { return {.head_dim = HeadDim(), .max_positions = max_positions, .theta = rope_theta}; }

  /// Errors: kUnsupported on other activations, RoPE scalings and types of layers.
  static Result<std::shared_ptr<LlamaConfig>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const override { return model_type; }
  ModelSizes sizes() const override;
  Json ToJson() const override;
  Status Validate(std::string_view what) const override;
  double initializer_range() const override { return initializer_stddev; }
  plan::ModelShape Shape() const override;
};

ModelFamily LlamaFamily();

}  // namespace millrace::engine
