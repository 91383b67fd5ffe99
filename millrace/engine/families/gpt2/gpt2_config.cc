#include "millrace/engine/families/gpt2/gpt2_config.h"
#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {

ModelFamily Gpt2Family() {
  static constexpr std::string_view kTypes[] = {"gpt2"};
  static constexpr std::string_view kOptions[] = {"activation_function", "layer_norm_epsilon", "initializer_range",
                                                  "embd_pdrop",          "attn_pdrop",         "resid_pdrop",
                                                  "tie_word_embeddings"};
  static constexpr std::string_view kTied[] = {"lm_head.weight"};
  static constexpr std::string_view kComputed[] = {".attn.bias", ".attn.masked_bias", ".crossattention.bias"};
  return {.model_types = kTypes,
          .parse = [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(Gpt2Config::FromJson(json, what)));
          },
          .new_model = NewGptModel,
          .options = kOptions,
          .names = {.prefix = "transformer.",
                    .embedding = "wte.weight",
                    .tied = true,
                    .tied_names = kTied,
                    .computed = kComputed,
                    .transposed_blocks = true}};
}

Gpt2Config::Gpt2Config() {
  vocab_size = 50257;
  hidden_size = 768;
  num_layers = num_heads = 12;
  max_positions = 1024;
  embedding_dropout = attention_dropout = residual_dropout = 0.1;
}

Json Gpt2Config::ToJson() const {
  Json json = GptConfig::ToJson();
  json["architectures"] = Json::array({"GPT2LMHeadModel"});
  return json;
}

Result<std::shared_ptr<Gpt2Config>> Gpt2Config::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<Gpt2Config>();
  MR_TRY(config->ReadShared(json, what));
  if (!MR_TRY(OptionalFlag(json, "scale_attn_weights", true)) ||
      MR_TRY(OptionalFlag(json, "scale_attn_by_inverse_layer_idx", false))) {
    return Fail(Code::kUnsupported,
                "{}: only attention scaled by 1/sqrt(head size) is implemented (scale_attn_weights true, "
                "scale_attn_by_inverse_layer_idx false)",
                what);
  }
  MR_TRY(config->Validate(what));
  return config;
}

}  // namespace millrace::engine
