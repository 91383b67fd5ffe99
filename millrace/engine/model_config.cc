#include "millrace/engine/model_config.h"

namespace millrace::engine {
namespace {

/// A member of a config.json that may be absent or null.
Result<std::int64_t> OptionalInt(const Json& json, std::string_view key, std::int64_t absent) {
  const Json* member = JsonFind(json, key);
  return member == nullptr || member->is_null() ? absent : JsonInt(json, key);
}
Result<double> OptionalNumber(const Json& json, std::string_view key, double absent) {
  const Json* member = JsonFind(json, key);
  return member == nullptr || member->is_null() ? absent : JsonNumber(json, key);
}
bool IsTrue(const Json& json, std::string_view key) {
  const Json* member = JsonFind(json, key);
  return member != nullptr && member->is_boolean() && member->get<bool>();
}

/// Returns RoPE's base: `rope_theta` or, since transformers 5, a member of `rope_parameters`.
/// Errors: kUnsupported on scaled variants.
Result<double> RopeTheta(const Json& json, std::string_view what) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = JsonFind(json, key);
    if (rope == nullptr || !rope->is_object()) continue;
    const Json* type = JsonFind(*rope, "rope_type");
    if (type == nullptr) type = JsonFind(*rope, "type");
    if (type != nullptr && type->is_string() && type->get<std::string>() != "default") {
      return Fail(Code::kUnsupported, "{}: {} of type {} is not implemented; only plain RoPE is", what, key,
                  DumpJson(*type));
    }
    if (JsonFind(*rope, "rope_theta") != nullptr) return JsonNumber(*rope, "rope_theta");
  }
  return OptionalNumber(json, "rope_theta", 10000);
}

Status RejectUnsupported(const Json& json, std::string_view what) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (IsTrue(json, key)) return Fail(Code::kUnsupported, "{}: {} is not implemented", what, key);
  }
  const Json* activation = JsonFind(json, "hidden_act");
  if (activation != nullptr && *activation != "silu") {
    return Fail(Code::kUnsupported, "{}: hidden_act {} is not implemented; silu is", what, DumpJson(*activation));
  }
  return {};
}

}  // namespace

Json ModelConfig::ToJson() const {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", family},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"intermediate_size", intermediate_size},
          {"num_hidden_layers", num_layers},
          {"num_attention_heads", num_heads},
          {"num_key_value_heads", num_kv_heads},
          {"head_dim", HeadDim()},
          {"max_position_embeddings", max_positions},
          {"rms_norm_eps", rms_norm_eps},
          {"rope_theta", rope_theta},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", tie_word_embeddings}};
}

Result<ModelConfig> ModelConfig::FromJson(const Json& json, std::string_view what) {
  ModelConfig config;
  config.family = MR_TRY(JsonString(json, "model_type"));
  if (config.family != "llama") {
    return Fail(Code::kUnsupported, "{}: model_type \"{}\" is not implemented; llama is", what, config.family);
  }
  MR_TRY(RejectUnsupported(json, what));
  config.vocab_size = MR_TRY(JsonInt(json, "vocab_size"));
  config.hidden_size = MR_TRY(JsonInt(json, "hidden_size"));
  config.intermediate_size = MR_TRY(JsonInt(json, "intermediate_size"));
  config.num_layers = MR_TRY(JsonInt(json, "num_hidden_layers"));
  config.num_heads = MR_TRY(JsonInt(json, "num_attention_heads"));
  config.num_kv_heads = MR_TRY(OptionalInt(json, "num_key_value_heads", config.num_heads));
  config.head_dim = MR_TRY(OptionalInt(json, "head_dim", 0));
  config.max_positions = MR_TRY(OptionalInt(json, "max_position_embeddings", 2048));
  config.rms_norm_eps = MR_TRY(OptionalNumber(json, "rms_norm_eps", 1e-6));
  config.rope_theta = MR_TRY(RopeTheta(json, what));
  config.tie_word_embeddings = IsTrue(json, "tie_word_embeddings");
  MR_TRY(config.Validate(what));
  return config;
}

Status ModelConfig::Validate(std::string_view what) const {
  struct Limit {
    std::string_view name;
    std::int64_t value, most;
  };
  // At least eight times the sizes of Llama 3.1 405B. The limits bound what a damaged file can make us allocate.
  const Limit limits[] = {{"vocab_size", vocab_size, 1 << 22},
                          {"hidden_size", hidden_size, 1 << 17},
                          {"intermediate_size", intermediate_size, 1 << 19},
                          {"num_hidden_layers", num_layers, 1 << 12},
                          {"num_attention_heads", num_heads, 1 << 12},
                          {"num_key_value_heads", num_kv_heads, 1 << 12},
                          {"max_position_embeddings", max_positions, 1 << 24}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return Fail(Code::kInvalidArgument, "{}: {} is {}; it must lie in 1…{}", what, limit.name, limit.value,
                  limit.most);
    }
  }
  if (family != "llama")
    return Fail(Code::kUnsupported, "{}: family \"{}\" is not implemented; llama is", what, family);
  if (num_heads % num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument, "{}: {} attention heads are not a multiple of {} key-value heads", what,
                num_heads, num_kv_heads);
  }
  if (head_dim < 0 || head_dim > 4096 || (head_dim == 0 && hidden_size % num_heads != 0)) {
    return Fail(Code::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of {} heads, and head_dim does not say more", what, hidden_size,
                num_heads);
  }
  if (HeadDim() % 2 != 0)
    return Fail(Code::kInvalidArgument, "{}: head_dim {} is odd; RoPE turns pairs", what, HeadDim());
  if (!(rms_norm_eps > 0) || !(rope_theta > 0)) {
    return Fail(Code::kInvalidArgument, "{}: rms_norm_eps and rope_theta must be positive", what);
  }
  return {};
}

std::int64_t ModelConfig::ParameterCount() const {
  const std::int64_t attention = hidden_size * HeadDim() * (2 * num_heads + 2 * num_kv_heads);
  const std::int64_t layer = attention + 3 * hidden_size * intermediate_size + 2 * hidden_size;
  return num_layers * layer + hidden_size + vocab_size * hidden_size * (tie_word_embeddings ? 1 : 2);
}

double ModelConfig::FlopsPerToken(double length) const {
  const std::int64_t attention = hidden_size * HeadDim() * (2 * num_heads + 2 * num_kv_heads);
  const std::int64_t layer = attention + 3 * hidden_size * intermediate_size;
  const double matmul = static_cast<double>(num_layers * layer + vocab_size * hidden_size);
  return 6 * matmul + 12 * static_cast<double>(num_layers * num_heads * HeadDim()) * length;
}

}  // namespace millrace::engine
