#include "millrace/engine/families/gpt2/gpt2.h"
#include "millrace/engine/models/config_fields.h"

namespace millrace::engine {

ModelFamily Gpt2Family() {
  static constexpr std::string_view kTypes[] = {"gpt2"};
  return {kTypes, [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(Gpt2Config::FromJson(json, what)));
          }};
}

ModelSizes Gpt2Config::sizes() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size > 0 ? intermediate_size : 4 * hidden_size,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = num_heads > 0 ? hidden_size / num_heads : 0,
          .max_positions = max_positions};
}

Json Gpt2Config::ToJson() const {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
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

Result<std::shared_ptr<Gpt2Config>> Gpt2Config::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<Gpt2Config>();
  Gpt2Config& c = *config;
  c.vocab_size = MR_TRY(OptionalInt(json, "vocab_size", c.vocab_size));
  c.hidden_size = MR_TRY(OptionalInt(json, "n_embd", c.hidden_size));
  c.num_layers = MR_TRY(OptionalInt(json, "n_layer", c.num_layers));
  c.num_heads = MR_TRY(OptionalInt(json, "n_head", c.num_heads));
  c.max_positions = MR_TRY(OptionalInt(json, "n_positions", c.max_positions));
  c.intermediate_size = MR_TRY(OptionalInt(json, "n_inner", 0));
  c.activation_name = MR_TRY(OptionalText(json, "activation_function", c.activation_name));
  c.activation = MR_TRY(ops::ParseActivation(c.activation_name, what));
  c.layer_norm_eps = MR_TRY(OptionalNumber(json, "layer_norm_epsilon", c.layer_norm_eps));
  c.initializer_stddev = MR_TRY(OptionalNumber(json, "initializer_range", c.initializer_stddev));
  c.embedding_dropout = MR_TRY(OptionalProbability(json, "embd_pdrop", c.embedding_dropout, what));
  c.attention_dropout = MR_TRY(OptionalProbability(json, "attn_pdrop", c.attention_dropout, what));
  c.residual_dropout = MR_TRY(OptionalProbability(json, "resid_pdrop", c.residual_dropout, what));
  c.tie_word_embeddings = MR_TRY(OptionalFlag(json, "tie_word_embeddings", true));
  if (!MR_TRY(OptionalFlag(json, "scale_attn_weights", true)) ||
      MR_TRY(OptionalFlag(json, "scale_attn_by_inverse_layer_idx", false))) {
    return Fail(Code::kUnsupported,
                "{}: only attention scaled by 1/sqrt(head size) is implemented (scale_attn_weights true, "
                "scale_attn_by_inverse_layer_idx false)",
                what);
  }
  MR_TRY(c.Validate(what));
  return config;
}

Status Gpt2Config::Validate(std::string_view what) const {
  if (num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument, "{}: n_embd {} is not a multiple of {} heads", what, hidden_size, num_heads);
  }
  if (!(layer_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: layer_norm_epsilon must be positive", what);
  return CheckSizes(sizes(), what);
}

}  // namespace millrace::engine
