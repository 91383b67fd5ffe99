#include "millrace/engine/families/gptj/gptj.h"
#include "millrace/engine/models/config_fields.h"

namespace millrace::engine {

ModelFamily GptjFamily() {
  static constexpr std::string_view kTypes[] = {"gptj"};
  return {kTypes, [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(GptjConfig::FromJson(json, what)));
          }};
}

ModelSizes GptjConfig::sizes() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size > 0 ? intermediate_size : 4 * hidden_size,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = num_heads > 0 ? hidden_size / num_heads : 0,
          .max_positions = max_positions};
}

Json GptjConfig::ToJson() const {
  return {{"architectures", {"GPTJForCausalLM"}},
          {"model_type", "gptj"},
          {"vocab_size", vocab_size},
          {"n_embd", hidden_size},
          {"n_layer", num_layers},
          {"n_head", num_heads},
          {"n_positions", max_positions},
          {"n_inner", intermediate_size > 0 ? Json(intermediate_size) : Json(nullptr)},
          {"rotary_dim", rotary_dim},
          {"activation_function", activation_name},
          {"layer_norm_epsilon", layer_norm_eps},
          {"initializer_range", initializer_stddev},
          {"embd_pdrop", embedding_dropout},
          {"attn_pdrop", attention_dropout},
          {"resid_pdrop", residual_dropout},
          {"tie_word_embeddings", tie_word_embeddings}};
}

Result<std::shared_ptr<GptjConfig>> GptjConfig::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<GptjConfig>();
  GptjConfig& c = *config;
  c.vocab_size = MR_TRY(OptionalInt(json, "vocab_size", c.vocab_size));
  c.hidden_size = MR_TRY(OptionalInt(json, "n_embd", c.hidden_size));
  c.num_layers = MR_TRY(OptionalInt(json, "n_layer", c.num_layers));
  c.num_heads = MR_TRY(OptionalInt(json, "n_head", c.num_heads));
  c.max_positions = MR_TRY(OptionalInt(json, "n_positions", c.max_positions));
  c.intermediate_size = MR_TRY(OptionalInt(json, "n_inner", 0));
  c.rotary_dim = MR_TRY(OptionalInt(json, "rotary_dim", c.rotary_dim));
  c.activation_name = MR_TRY(OptionalText(json, "activation_function", c.activation_name));
  c.activation = MR_TRY(ops::ParseActivation(c.activation_name, what));
  c.layer_norm_eps = MR_TRY(OptionalNumber(json, "layer_norm_epsilon", c.layer_norm_eps));
  c.initializer_stddev = MR_TRY(OptionalNumber(json, "initializer_range", c.initializer_stddev));
  c.embedding_dropout = MR_TRY(OptionalProbability(json, "embd_pdrop", c.embedding_dropout, what));
  c.attention_dropout = MR_TRY(OptionalProbability(json, "attn_pdrop", c.attention_dropout, what));
  c.residual_dropout = MR_TRY(OptionalProbability(json, "resid_pdrop", c.residual_dropout, what));
  c.tie_word_embeddings = MR_TRY(OptionalFlag(json, "tie_word_embeddings", c.tie_word_embeddings));
  MR_TRY(c.Validate(what));
  return config;
}

Status GptjConfig::Validate(std::string_view what) const {
  if (num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument, "{}: n_embd {} is not a multiple of {} heads", what, hidden_size, num_heads);
  }
  MR_TRY(CheckSizes(sizes(), what));
  if (rotary_dim < 2 || rotary_dim % 2 != 0 || rotary_dim > sizes().head_dim) {
    return Fail(Code::kInvalidArgument, "{}: rotary_dim {} must be even and at most the head's {} dimensions", what,
                rotary_dim, sizes().head_dim);
  }
  if (!(layer_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: layer_norm_epsilon must be positive", what);
  return {};
}

}  // namespace millrace::engine
