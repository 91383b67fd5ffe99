// OLMo 2 (OLMo team 2024): a Llama that normalizes what attention and MLP add, not what they read, and all queries and
// all keys of a token together. Names and numerics are those of transformers' Olmo2ForCausalLM.
#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

class Olmo2Config final : public LlamaConfig {
 public:
  Olmo2Config() {
    variant.norms = {.before_attention = {},
                     .after_attention = "post_attention_layernorm",
                     .before_mlp = {},
                     .after_mlp = "post_feedforward_layernorm"};
    variant.qk_norm = QueryKeyNorm::kAllHeads;
  }
  Status Read(const Json& json, std::string_view what) {
    MR_TRY(ReadShared(json, what));
    MR_TRY(CheckWholeRotary(json, what));
    MR_TRY(ReadActivation(json, "hidden_act", "silu", what));
    return ReadAttentionBias(json, false);
  }
  Json ToJson() const override {
    Json json = SharedJson("Olmo2ForCausalLM");
    json["hidden_act"] = "silu";
    json["attention_bias"] = qkv_bias;
    return json;
  }
};

}  // namespace

ModelFamily Olmo2Family() {
  static constexpr std::string_view kTypes[] = {"olmo2"};
  static constexpr std::string_view kOptions[] = {"head_dim",       "rms_norm_eps",       "rope_theta",
                                                  "rope_scaling",   "initializer_range",  "attention_dropout",
                                                  "attention_bias", "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<Olmo2Config>,
          .new_model = NewLlamaVariant,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/false)};
}

}  // namespace millrace::engine
