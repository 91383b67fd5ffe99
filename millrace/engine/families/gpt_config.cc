#include "millrace/engine/families/gpt_config.h"

#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {

Json NewGptModel(std::string_view model_type, const ModelSizes& sizes) {
  return {{"model_type", model_type},
          {"vocab_size", sizes.vocab_size},
          {"n_embd", sizes.hidden_size},
          {"n_inner", sizes.intermediate_size > 0 ? sizes.intermediate_size : 4 * sizes.hidden_size},
          {"n_layer", sizes.num_layers},
          {"n_head", sizes.num_heads},
          {"n_positions", sizes.max_positions}};
}

ModelSizes GptConfig::sizes() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size > 0 ? intermediate_size : 4 * hidden_size,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = num_heads > 0 ? hidden_size / num_heads : 0,
          .max_positions = max_positions};
}

Json GptConfig::ToJson() const {
  return {{"model_type", family()},
          {"vocab_size", vocab_size},
          {"n_embd", hidden_size},
          {"n_layer", num_layers},
          {"n_head", num_heads},
          {"n_positions", max_positions},
          {"n_inner", intermediate_size > 0 ? Json(intermediate_size) : Json(nullptr)},
          {"activation_function", activation_name},
          {"layer_norm_epsilon", layer_norm_eps},
          {"initializer_range", initializer_stddev},
          {"embd_pdrop", embedding_dropout},
          {"attn_pdrop", attention_dropout},
          {"resid_pdrop", residual_dropout},
          {"tie_word_embeddings", tie_word_embeddings}};
}

Status GptConfig::ReadShared(const Json& json, std::string_view what) {
  vocab_size = MR_TRY(OptionalInt(json, "vocab_size", vocab_size));
  hidden_size = MR_TRY(OptionalInt(json, "n_embd", hidden_size));
  num_layers = MR_TRY(OptionalInt(json, "n_layer", num_layers));
  num_heads = MR_TRY(OptionalInt(json, "n_head", num_heads));
  max_positions = MR_TRY(OptionalInt(json, "n_positions", max_positions));
  intermediate_size = MR_TRY(OptionalInt(json, "n_inner", 0));
  activation_name = MR_TRY(OptionalText(json, "activation_function", activation_name));
  activation = MR_TRY(ParseActivation(activation_name, what));
  layer_norm_eps = MR_TRY(OptionalNumber(json, "layer_norm_epsilon", layer_norm_eps));
  initializer_stddev = MR_TRY(OptionalDeviation(json, "initializer_range", initializer_stddev, what));
  embedding_dropout = MR_TRY(OptionalProbability(json, "embd_pdrop", embedding_dropout, what));
  attention_dropout = MR_TRY(OptionalProbability(json, "attn_pdrop", attention_dropout, what));
  residual_dropout = MR_TRY(OptionalProbability(json, "resid_pdrop", residual_dropout, what));
  tie_word_embeddings = MR_TRY(OptionalFlag(json, "tie_word_embeddings", tie_word_embeddings));
  return {};
}

Status GptConfig::Validate(std::string_view what) const {
  if (num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument, "{}: n_embd {} is not a multiple of {} heads; change n_embd or n_head", what,
                hidden_size, num_heads);
  }
  if (!(layer_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: layer_norm_epsilon must be positive", what);
  return CheckSizes(sizes(), what);
}

}  // namespace millrace::engine
