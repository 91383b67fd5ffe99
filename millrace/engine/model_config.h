// The shape of a decoder: sizes and constants, as config.json has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// Sizes and constants of a decoder; the JSON form has Hugging Face's config.json keys.
struct ModelConfig {
  std::string family = "llama";
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  std::int64_t num_layers = 32, num_heads = 32, num_kv_heads = 32, head_dim = 0;  ///< head_dim 0: hidden/heads
  std::int64_t max_positions = 2048;
  double rms_norm_eps = 1e-5, rope_theta = 10000;
  bool tie_word_embeddings = false;

  std::int64_t HeadDim() const { return head_dim ? head_dim : hidden_size / num_heads; }

  Json ToJson() const;
  /// Reads a config.json; `what` names it in errors.
  /// Errors: kUnsupported on architectures and options that change the numbers and are not implemented (rope_scaling,
  /// biases, other activations); kInvalidArgument on impossible sizes.
  static Result<ModelConfig> FromJson(const Json& json, std::string_view what);
  /// Checks that sizes are positive, bounded and divide as they must.
  Status Validate(std::string_view what) const;
  std::int64_t ParameterCount() const;
  /// Returns the floating-point operations per trained token: 6·(matmul parameters, LM head included) +
  /// 12·layers·heads·head_dim·length. `length` is the length of the sequence or document that the average token is in.
  double FlopsPerToken(double length) const;
};

}  // namespace millrace::engine
