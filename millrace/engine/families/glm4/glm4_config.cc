// GLM-4 of 2025 (GLM-4-0414): a Llama with norms in front of and behind attention and MLP, which rotates neighbouring
// dimensions of a part of each head. Names and numerics are those of transformers' Glm4ForCausalLM.
#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

constexpr double kUsualRotaryPart = 0.5;

class Glm4Config final : public LlamaConfig {
 public:
  Glm4Config() {
    max_positions = 131072;
    rms_norm_eps = 1.5625e-7;
    head_dim = 128;
    variant.norms = {.before_attention = "input_layernorm",
                     .after_attention = "post_self_attn_layernorm",
                     .before_mlp = "post_attention_layernorm",
                     .after_mlp = "post_mlp_layernorm"};
    variant.joined_gate = true;
    variant.rotates_neighbours = true;
  }
  Status Read(const Json& json, std::string_view what) {
    MR_TRY(ReadShared(json, what));
    if (JsonFind(json, "num_key_value_heads") == nullptr) num_kv_heads = 2;  // transformers' default
    MR_TRY(ReadPartialRotary(json, kUsualRotaryPart, what));
    MR_TRY(ReadActivation(json, "hidden_act", "silu", what));
    return ReadAttentionBias(json, true, /*of_output=*/false);
  }
  Json ToJson() const override {
    Json json = SharedJson("Glm4ForCausalLM");
    json["hidden_act"] = "silu";
    json["attention_bias"] = qkv_bias;
    json["partial_rotary_factor"] = partial_rotary_factor();
    return json;
  }
};

Json NewGlm4(std::string_view model_type, const ModelSizes& sizes) {
  Json json = NewLlamaVariant(model_type, sizes);
  if (sizes.num_heads > 0 && sizes.hidden_size >= sizes.num_heads)
    json["head_dim"] = sizes.hidden_size / sizes.num_heads;
  return json;
}

}  // namespace

ModelFamily Glm4Family() {
  static constexpr std::string_view kTypes[] = {"glm4"};
  static constexpr std::string_view kOptions[] = {"head_dim",          "rms_norm_eps",          "rope_theta",
                                                  "rope_scaling",      "initializer_range",     "attention_bias",
                                                  "attention_dropout", "partial_rotary_factor", "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<Glm4Config>,
          .new_model = NewGlm4,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/false)};
}

}  // namespace millrace::engine
