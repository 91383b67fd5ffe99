#include "millrace/engine/families/gpt2/gpt2_config.h"
#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {

namespace {

constexpr std::string_view kLanguageModel = "GPT2LMHeadModel", kClassifier = "GPT2ForSequenceClassification";

void SetGpt2Heads(Json& json, ModelHeads heads, std::int64_t classes) {
  json["architectures"] = Json::array({heads.tokens ? kLanguageModel : kClassifier});
  if (!heads.tokens) json["num_labels"] = classes;
}

bool IsClassifier(const Json& json) {
  const Json* architectures = JsonFind(json, "architectures");
  return architectures != nullptr && architectures->is_array() && !architectures->empty() &&
         architectures->front() == kClassifier;
}

}  // namespace

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
                    .transposed_blocks = true},
          .set_heads = SetGpt2Heads};
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
  json["architectures"] = Json::array({classifies ? kClassifier : kLanguageModel});
  if (classifies) WriteClassNames(json, num_labels);
  return json;
}

Result<std::shared_ptr<Gpt2Config>> Gpt2Config::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<Gpt2Config>();
  MR_TRY(config->ReadShared(json, what));
  config->classifies = IsClassifier(json);
  config->num_labels = MR_TRY(OptionalClasses(json, what));
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
