// Granite 3 (IBM 2024): a Llama with factors of embeddings, of attention scores, of what blocks add, and of logits, so
// that learning rates carry over between sizes. Names and numerics are those of transformers' GraniteForCausalLM.
#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

class GraniteConfig final : public LlamaConfig {
 public:
  GraniteConfig() {
    rms_norm_eps = 1e-6;
    variant.attention_scale = 1;
  }
  Status Read(const Json& json, std::string_view what) {
    MR_TRY(ReadShared(json, what));
    MR_TRY(CheckWholeRotary(json, what));
    MR_TRY(ReadActivation(json, "hidden_act", "silu", what));
    MR_TRY(ReadAttentionBias(json, false));
    mlp_bias = MR_TRY(OptionalFlag(json, "mlp_bias", false));
    variant.embedding_scale = MR_TRY(OptionalNumber(json, "embedding_multiplier", 1));
    variant.attention_scale = MR_TRY(OptionalNumber(json, "attention_multiplier", 1));
    variant.residual_scale = MR_TRY(OptionalNumber(json, "residual_multiplier", 1));
    logits_scaling_ = MR_TRY(OptionalNumber(json, "logits_scaling", 1));
    if (!(logits_scaling_ > 0) || !(variant.attention_scale > 0)) {
      return Fail(Code::kInvalidArgument, "{}: logits_scaling {} and attention_multiplier {} must be positive", what,
                  logits_scaling_, variant.attention_scale);
    }
    variant.logit_scale = 1 / logits_scaling_;
    return {};
  }
  Json ToJson() const override {
    Json json = SharedJson("GraniteForCausalLM");
    json["hidden_act"] = "silu";
    json["attention_bias"] = qkv_bias;
    json["mlp_bias"] = mlp_bias;
    json["embedding_multiplier"] = variant.embedding_scale;
    json["attention_multiplier"] = variant.attention_scale;
    json["residual_multiplier"] = variant.residual_scale;
    json["logits_scaling"] = logits_scaling_;
    return json;
  }

 private:
  double logits_scaling_ = 1;  // divides the logits
};

/// The factors of a new model are those of Granite 3.
Json NewGranite(std::string_view model_type, const ModelSizes& sizes) {
  Json json = NewLlamaVariant(model_type, sizes);
  json["embedding_multiplier"] = 12;
  json["residual_multiplier"] = 0.22;
  json["logits_scaling"] = 8;
  if (sizes.num_heads > 0 && sizes.hidden_size >= sizes.num_heads) {
    json["attention_multiplier"] = static_cast<double>(sizes.num_heads) / static_cast<double>(sizes.hidden_size);
  }
  return json;
}

}  // namespace

ModelFamily GraniteFamily() {
  static constexpr std::string_view kTypes[] = {"granite"};
  static constexpr std::string_view kOptions[] = {
      "head_dim",       "rms_norm_eps",        "rope_theta",         "rope_scaling",         "initializer_range",
      "attention_bias", "attention_dropout",   "mlp_bias",           "embedding_multiplier", "attention_multiplier",
      "logits_scaling", "residual_multiplier", "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<GraniteConfig>,
          .new_model = NewGranite,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/false)};
}

}  // namespace millrace::engine
