// The Llama family (Touvron et al. 2023): pre-norm decoder with RMS norms, rotary positions, grouped-query attention
// and SwiGLU. Its members differ in few places: Mistral sees a window of keys, Ministral and Qwen in some layers only,
// Qwen2 has biases on queries, keys and values, Qwen3 norms queries and keys. Names and numerics are those of
// transformers' LlamaForCausalLM and its kin. Families that differ more derive the configuration, and set the members
// of LlamaVariant: one model (llama.cc) and one list of layers (llama_shape.cc) compute all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/activation.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/rope_config.h"

namespace millrace::engine {

/// The norms of a block, by what their parameters are called in the block. An empty name: the block has none there.
struct BlockNorms {
  std::string_view before_attention = "input_layernorm", after_attention = {};
  std::string_view before_mlp = "post_attention_layernorm", after_mlp = {};
};

/// The norm of queries and keys, before the rotation.
enum class QueryKeyNorm {
  kNone,
  kHeads,     ///< each head by itself, with one weight for all of them (Qwen3)
  kAllHeads,  ///< all heads together (OLMo 2)
};

/// The differences between Llama and decoders that are nearly one.
struct LlamaVariant {
  BlockNorms norms = {};
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  double norm_offset = 0;    ///< is added to the weights of RMS norms (ops::RmsNormOptions)
  bool joined_qkv = false;   ///< queries, keys and values are one parameter: self_attn.qkv_proj
  bool joined_gate = false;  ///< the two input layers of the MLP are one parameter: mlp.gate_up_proj
  Activation activation = Activation::kSilu;
  // Factors. attention_scale 0 is 1/sqrt(head_dim).
  double embedding_scale = 1, attention_scale = 0, residual_scale = 1, logit_scale = 1;
  bool rounds_embedding_scale = false;              ///< to the type of the model, as Gemma does
  double attention_softcap = 0, logit_softcap = 0;  ///< 0: none (ops::SoftCapped)
  double residual_dropout = 0;                      ///< of what attention and MLP add
  std::int64_t rotary_dim = 0;                      ///< the first dimensions of a head, which are rotated; 0: all
  bool rotates_neighbours = false;                  ///< ops::RotaryPairs::kNeighbours
  std::vector<bool> has_rope = {};                  ///< by layer; empty: all layers rotate
  double window_rope_theta = 0;  ///< of layers with a window, whose angles are not scaled; 0: all layers are alike
};

/// The configuration of a model of this family, or of one that derives it. A derived class has the family's defaults
/// of transformers in its constructor.
class LlamaConfig : public ModelConfig {
 public:
  std::string model_type = "llama";
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  std::int64_t num_layers = 32, num_heads = 32, num_kv_heads = 32, head_dim = 0;  ///< head_dim 0: hidden/heads
  std::int64_t max_positions = 2048;
  double rms_norm_eps = 1e-5, rope_theta = 10000, initializer_stddev = 0.02, attention_dropout = 0;
  RopeScaling rope_scaling;
  std::int64_t sliding_window = 0;    ///< keys that a query sees in layers with a window; 0: no layer has one
  std::vector<bool> has_window = {};  ///< by layer; empty: all layers have the window, or none has
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool tie_word_embeddings = false;
  LlamaVariant variant;

  std::int64_t HeadDim() const { return head_dim ? head_dim : hidden_size / num_heads; }
  std::int64_t RotaryDim() const { return variant.rotary_dim > 0 ? variant.rotary_dim : HeadDim(); }
  bool HasRope(std::int64_t layer) const {
    return variant.has_rope.empty() || variant.has_rope[static_cast<std::size_t>(layer)];
  }
  /// Returns how many keys a query sees in a layer; 0: all.
  std::int64_t WindowOf(std::int64_t layer) const {
    return has_window.empty() || has_window[static_cast<std::size_t>(layer)] ? sliding_window : 0;
  }
  RopeSizes rope_sizes() const {
    return {.head_dim = RotaryDim(), .max_positions = max_positions, .theta = rope_theta};
  }

  /// Reads a model of the types that LlamaFamily() has.
  /// Errors: kUnsupported on other activations, RoPE scalings and types of layers.
  static Result<std::shared_ptr<LlamaConfig>> FromJson(const Json& json, std::string_view what);

  std::string_view family() const final { return model_type; }
  ModelSizes sizes() const final;
  Json ToJson() const override;
  Status Validate(std::string_view what) const final;
  double initializer_range() const final { return initializer_stddev; }
  plan::ModelShape Shape() const final;

 protected:
  /// Reads the members of config.json that all such decoders have: sizes, RMS norms, dropout of attention, RoPE, biases
  /// of attention, the tied head. A member that is absent has the value that the object has.
  /// Errors: kUnsupported on RoPE scalings that are not implemented.
  Status ReadShared(const Json& json, std::string_view what);
  /// Reads attention_bias: of queries, keys and values, and in most families of the output, too.
  Status ReadAttentionBias(const Json& json, bool absent, bool of_output = true);
  /// Reads partial_rotary_factor, which transformers 5 has among rope_parameters, of a family that has it. Others
  /// refuse it by CheckWholeRotary(). REQUIRES: ReadShared() succeeded.
  Status ReadPartialRotary(const Json& json, double absent, std::string_view what);
  Status CheckWholeRotary(const Json& json, std::string_view what);
  double partial_rotary_factor() const { return static_cast<double>(RotaryDim()) / static_cast<double>(HeadDim()); }
  /// Writes them. The biases are the caller's.
  Json SharedJson(std::string_view architecture) const;
  /// Reads hidden_act or, in some families, a member of another name.
  Status ReadActivation(const Json& json, std::string_view key, std::string_view name, std::string_view what);
};

ModelFamily LlamaFamily();

// For families whose configurations derive LlamaConfig.

/// Reads a configuration with its Read(json, what), and validates it.
template <class Config>
Result<std::shared_ptr<const ModelConfig>> ReadVariant(const Json& json, std::string_view what) {
  auto config = std::make_shared<Config>();
  MR_TRY(config->Read(json, what));
  MR_TRY(config->Validate(what));
  return config;
}
/// Returns the names in Hugging Face's folders. `tied`: FolderNames::tied.
FolderNames LlamaFolderNames(bool tied);
/// Returns the config.json of a new model of such a decoder, without what only the Llama family has.
Json NewLlamaVariant(std::string_view model_type, const ModelSizes& sizes);

/// Reads `layer_types`: which layers have the window. Errors: kUnsupported on other types than full_attention and
/// sliding_attention; kInvalidArgument if there is not one for each layer.
Result<std::vector<bool>> ReadLayerTypes(const Json& types, std::string_view what, std::int64_t layers);
/// Returns the value of `layer_types`.
Json LayerTypesJson(const std::vector<bool>& has_window);

}  // namespace millrace::engine
