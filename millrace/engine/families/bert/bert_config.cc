#include "millrace/engine/families/bert/bert_config.h"

#include <algorithm>

#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {
namespace {

struct NamedHeads {
  std::string_view architecture;
  BertHeads heads;
};
constexpr NamedHeads kHeads[] = {{"BertForPreTraining", BertHeads::kPreTraining},
                                 {"BertForMaskedLM", BertHeads::kMaskedLm},
                                 {"BertForSequenceClassification", BertHeads::kClassification},
                                 {"BertModel", BertHeads::kNone}};

Result<BertHeads> ReadHeads(const Json& json, std::string_view what) {
  const Json* architectures = JsonFind(json, "architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->empty()) return BertHeads::kPreTraining;
  const Json& first = architectures->front();
  for (const NamedHeads& named : kHeads) {
    if (first.is_string() && first.get<std::string>() == named.architecture) return named.heads;
  }
  return Fail(Code::kUnsupported,
              "{}: architecture {} is not implemented; BertForPreTraining, BertForMaskedLM, "
              "BertForSequenceClassification and BertModel are",
              what, DumpJson(first));
}

Status RejectUnsupported(const Json& json, std::string_view what) {
  const std::string positions = MR_TRY(OptionalText(json, "position_embedding_type", "absolute"));
  if (positions != "absolute") {
    return Fail(Code::kUnsupported, "{}: position_embedding_type \"{}\" is not implemented; absolute is", what,
                positions);
  }
  if (MR_TRY(OptionalFlag(json, "is_decoder", false))) {
    return Fail(Code::kUnsupported, "{}: is_decoder is not implemented", what);
  }
  if (!MR_TRY(OptionalFlag(json, "tie_word_embeddings", true))) {
    return Fail(Code::kUnsupported, "{}: a head that is not tied to the embedding is not implemented", what);
  }
  return {};
}

std::string_view BertArchitecture(BertHeads heads) {
  return std::ranges::find(kHeads, heads, &NamedHeads::heads)->architecture;
}

void SetBertHeads(Json& json, ModelHeads heads, std::int64_t classes) {
  const BertHeads own = !heads.tokens ? BertHeads::kClassification
                        : heads.rows  ? BertHeads::kPreTraining
                                      : BertHeads::kMaskedLm;
  json["architectures"] = Json::array({BertArchitecture(own)});
  if (own == BertHeads::kClassification) json["num_labels"] = classes;
}

Json NewBert(std::string_view model_type, const ModelSizes& sizes) {
  return {{"model_type", model_type},
          {"vocab_size", sizes.vocab_size},
          {"hidden_size", sizes.hidden_size},
          {"intermediate_size", sizes.intermediate_size > 0 ? sizes.intermediate_size : 4 * sizes.hidden_size},
          {"num_hidden_layers", sizes.num_layers},
          {"num_attention_heads", sizes.num_heads},
          {"max_position_embeddings", sizes.max_positions}};
}

}  // namespace

ModelFamily BertFamily() {
  static constexpr std::string_view kTypes[] = {"bert"};
  static constexpr std::string_view kOptions[] = {"type_vocab_size",
                                                  "hidden_act",
                                                  "layer_norm_eps",
                                                  "initializer_range",
                                                  "classifier_dropout",
                                                  "hidden_dropout_prob",
                                                  "attention_probs_dropout_prob"};
  static constexpr std::string_view kTied[] = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"};
  static constexpr std::string_view kComputed[] = {"embeddings.position_ids", "embeddings.token_type_ids"};
  return {.model_types = kTypes,
          .parse = [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(BertConfig::FromJson(json, what)));
          },
          .new_model = NewBert,
          .options = kOptions,
          .names = {.prefix = "bert.",
                    .embedding = "embeddings.word_embeddings.weight",
                    .tied = true,
                    .tied_names = kTied,
                    .computed = kComputed},
          .causal = false,
          .set_heads = SetBertHeads};
}

ModelSizes BertConfig::sizes() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = num_heads > 0 ? hidden_size / num_heads : 0,
          .max_positions = max_positions};
}

Json BertConfig::ToJson() const {
  Json json = {{"architectures", {BertArchitecture(heads)}},
               {"model_type", "bert"},
               {"vocab_size", vocab_size},
               {"hidden_size", hidden_size},
               {"intermediate_size", intermediate_size},
               {"num_hidden_layers", num_layers},
               {"num_attention_heads", num_heads},
               {"max_position_embeddings", max_positions},
               {"type_vocab_size", segments},
               {"hidden_act", activation_name},
               {"layer_norm_eps", layer_norm_eps},
               {"initializer_range", initializer_stddev},
               {"hidden_dropout_prob", hidden_dropout},
               {"attention_probs_dropout_prob", attention_dropout},
               {"classifier_dropout", classifier_dropout},
               {"position_embedding_type", "absolute"}};
  if (heads == BertHeads::kClassification) {
    WriteClassNames(json, num_labels);
  }
  return json;
}

Result<std::shared_ptr<BertConfig>> BertConfig::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<BertConfig>();
  BertConfig& c = *config;
  MR_TRY(RejectUnsupported(json, what));
  c.vocab_size = MR_TRY(OptionalInt(json, "vocab_size", c.vocab_size));
  c.hidden_size = MR_TRY(OptionalInt(json, "hidden_size", c.hidden_size));
  c.intermediate_size = MR_TRY(OptionalInt(json, "intermediate_size", c.intermediate_size));
  c.num_layers = MR_TRY(OptionalInt(json, "num_hidden_layers", c.num_layers));
  c.num_heads = MR_TRY(OptionalInt(json, "num_attention_heads", c.num_heads));
  c.max_positions = MR_TRY(OptionalInt(json, "max_position_embeddings", c.max_positions));
  c.segments = MR_TRY(OptionalInt(json, "type_vocab_size", c.segments));
  c.activation_name = MR_TRY(OptionalText(json, "hidden_act", c.activation_name));
  c.activation = MR_TRY(ParseActivation(c.activation_name, what));
  c.layer_norm_eps = MR_TRY(OptionalNumber(json, "layer_norm_eps", c.layer_norm_eps));
  c.initializer_stddev = MR_TRY(OptionalDeviation(json, "initializer_range", c.initializer_stddev, what));
  c.hidden_dropout = MR_TRY(OptionalProbability(json, "hidden_dropout_prob", c.hidden_dropout, what));
  c.attention_dropout = MR_TRY(OptionalProbability(json, "attention_probs_dropout_prob", c.attention_dropout, what));
  c.classifier_dropout = MR_TRY(OptionalProbability(json, "classifier_dropout", c.hidden_dropout, what));
  c.heads = MR_TRY(ReadHeads(json, what));
  c.num_labels = MR_TRY(OptionalClasses(json, what));
  MR_TRY(c.Validate(what));
  return config;
}

Status BertConfig::Validate(std::string_view what) const {
  if (num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of {} heads; change hidden_size or num_attention_heads", what,
                hidden_size, num_heads);
  }
  if (segments < 1 || segments > 1 << 10) {
    return Fail(Code::kInvalidArgument, "{}: {} segments; type_vocab_size must be at least 1 and at most 1024", what,
                segments);
  }
  if (!(layer_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: layer_norm_eps must be positive", what);
  return CheckSizes(sizes(), what);
}

}  // namespace millrace::engine
