#include "millrace/engine/families/gptj/gptj_config.h"
#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {

ModelFamily GptjFamily() {
  static constexpr std::string_view kTypes[] = {"gptj"};
  static constexpr std::string_view kOptions[] = {"rotary_dim",        "activation_function", "layer_norm_epsilon",
                                                  "initializer_range", "embd_pdrop",          "attn_pdrop",
                                                  "resid_pdrop",       "tie_word_embeddings"};
  static constexpr std::string_view kTied[] = {"lm_head.weight"};
  static constexpr std::string_view kComputed[] = {".attn.bias", ".attn.masked_bias", ".attn.embed_positions"};
  return {.model_types = kTypes,
          .parse = [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(GptjConfig::FromJson(json, what)));
          },
          .new_model = NewGptModel,
          .options = kOptions,
          .names = {.prefix = "transformer.",
                    .embedding = "wte.weight",
                    .tied = false,
                    .tied_names = kTied,
                    .computed = kComputed}};
}

GptjConfig::GptjConfig() {
  vocab_size = 50400;
  hidden_size = 4096;
  num_layers = 28;
  num_heads = 16;
  max_positions = 2048;
  tie_word_embeddings = false;
}

Json GptjConfig::ToJson() const {
  Json json = GptConfig::ToJson();
  json["architectures"] = Json::array({"GPTJForCausalLM"});
  json["rotary_dim"] = rotary_dim;
  return json;
}

Result<std::shared_ptr<GptjConfig>> GptjConfig::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<GptjConfig>();
  MR_TRY(config->ReadShared(json, what));
  config->rotary_dim = MR_TRY(OptionalInt(json, "rotary_dim", config->rotary_dim));
  MR_TRY(config->Validate(what));
  return config;
}

Status GptjConfig::Validate(std::string_view what) const {
  MR_TRY(GptConfig::Validate(what));
  if (rotary_dim < 2 || rotary_dim % 2 != 0 || rotary_dim > sizes().head_dim) {
    return Fail(Code::kInvalidArgument, "{}: rotary_dim {} must be even and at most the head's {} dimensions", what,
                rotary_dim, sizes().head_dim);
  }
  return {};
}

}  // namespace millrace::engine
