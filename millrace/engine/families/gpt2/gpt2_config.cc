#include "millrace/engine/families/gpt2/gpt2.h"
#include "millrace/engine/models/config_fields.h"

namespace millrace::engine {

ModelFamily Gpt2Family() {
  static constexpr std::string_view kTypes[] = {"gpt2"};
  return {kTypes, [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(Gpt2Config::FromJson(json, what)));
          }};
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
