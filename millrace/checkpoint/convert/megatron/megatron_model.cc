#include "millrace/checkpoint/convert/megatron/megatron_model.h"

#include <cmath>
#include <string_view>

namespace millrace::checkpoint {
namespace {

using ValueKind = Pickle::ValueKind;
using Value = Pickle::Value;

/// The largest size in a configuration. A bound for products of two; a guess, far above real models.
constexpr std::uint64_t kMaxSize = 1ull << 30;
/// The most layers. A guess: it bounds the number of tensors.
constexpr std::uint64_t kMaxLayers = 100'000;
constexpr std::string_view kCure = "Give the model's own configuration with --config config.json";

/// Megatron's arguments: the members of an argparse.Namespace or of a dict.
class MegatronArguments {
 public:
  MegatronArguments(const Pickle& pickle, const Value& arguments) : pickle_(pickle), arguments_(arguments) {}

  std::uint64_t Size(std::string_view name) const {
    const Value* value = pickle_.Member(arguments_, name);
    const bool is_size = value != nullptr && value->kind == ValueKind::kInt && value->number > 0;
    return is_size ? static_cast<std::uint64_t>(value->number) : 0;
  }
  bool Flag(std::string_view name) const {
    const Value* value = pickle_.Member(arguments_, name);
    return value != nullptr && value->kind == ValueKind::kBool && value->number != 0;
  }
  /// Whether the argument is there and is neither None nor False.
  bool IsSet(std::string_view name) const {
    const Value* value = pickle_.Member(arguments_, name);
    return value != nullptr && value->kind != ValueKind::kNone &&
           !(value->kind == ValueKind::kBool && value->number == 0);
  }
  std::string Text(std::string_view name) const {
    const Value* value = pickle_.Member(arguments_, name);
    return value != nullptr && value->kind == ValueKind::kText ? value->text : "";
  }
  std::optional<double> Number(std::string_view name) const {
    const Value* value = pickle_.Member(arguments_, name);
    if (value != nullptr && value->kind == ValueKind::kInt) return static_cast<double>(value->number);
    if (value != nullptr && value->kind == ValueKind::kFloat && std::isfinite(value->real)) return value->real;
    return std::nullopt;
  }

 private:
  const Pickle& pickle_;
  const Value& arguments_;
};

Error Unsupported(std::string_view what) {
  return {Code::kUnsupported, fmt::format("the model has {}, which no imported family has. {}", what, kCure)};
}

Status CheckSizes(const MegatronModel& model) {
  for (const std::uint64_t size :
       {model.layers, model.hidden, model.heads, model.head_dim, model.intermediate, model.groups, model.vocabulary}) {
    if (size == 0 || size > kMaxSize)
      return Fail(Code::kCorrupt, "a size of the model is missing or impossible ({})", size);
  }
  if (model.layers > kMaxLayers || model.heads % model.groups != 0 || model.heads > kMaxSize / model.head_dim ||
      (model.family == MegatronFamily::kGpt2 &&
       (model.groups != model.heads || model.heads * model.head_dim != model.hidden))) {
    return Fail(Code::kCorrupt,
                "the model's sizes contradict each other: {} layers, {} heads of {}, {} groups, {} in "
                "all",
                model.layers, model.heads, model.head_dim, model.groups, model.hidden);
  }
  return {};
}

/// Fails for what changes a model's function, and what neither family has.
Status CheckFeatures(const MegatronArguments& arguments) {
  for (const auto& [name, what] : {std::pair("num_experts", "a mixture of experts"),
                                   {"multi_latent_attention", "multi-latent attention"},
                                   {"apply_layernorm_1p", "norms around 1 (apply_layernorm_1p)"},
                                   {"squared_relu", "a squared ReLU"},
                                   {"layernorm_zero_centered_gamma", "norms around 1"},
                                   {"quick_geglu", "a quick GEGLU"},
                                   {"window_size", "a window of attention"},
                                   {"rotary_interleaved", "interleaved rotary dimensions"},
                                   {"mtp_num_layers", "layers that predict several tokens"},
                                   {"heterogeneous_layers_config_path", "uneven layers"},
                                   {"attention_output_gate", "a gate behind attention"},
                                   {"hybrid_layer_pattern", "layers of several kinds"},
                                   {"hybrid_override_pattern", "layers of several kinds"},
                                   {"is_hybrid_model", "layers of several kinds"}}) {
    if (arguments.IsSet(name)) return Fail(Unsupported(what));
  }
  return {};
}

double Epsilon(const MegatronArguments& arguments) {
  return arguments.Number("norm_epsilon").value_or(arguments.Number("layernorm_epsilon").value_or(1e-5));
}

Result<Json> LlamaConfigOf(const MegatronModel& model, const MegatronArguments& arguments) {
  const bool qk_norm = arguments.Flag("qk_layernorm");
  const bool qkv_bias = arguments.Flag("add_qkv_bias") || arguments.Flag("add_bias_linear");
  const bool any_bias = arguments.Flag("add_bias_linear");
  if (qk_norm && qkv_bias) return Fail(Unsupported("norms of queries and keys together with biases"));
  const char* type = qk_norm ? "qwen3" : qkv_bias && !any_bias ? "qwen2" : "llama";
  const char* architecture = qk_norm                 ? "Qwen3ForCausalLM"
                             : qkv_bias && !any_bias ? "Qwen2ForCausalLM"
                                                     : "LlamaForCausalLM";
  if (arguments.Number("rotary_percent").value_or(1) != 1) return Fail(Unsupported("rotary embeddings of a part"));
  Json config = {{"architectures", {architecture}},
                 {"model_type", type},
                 {"vocab_size", model.vocabulary},
                 {"hidden_size", model.hidden},
                 {"intermediate_size", model.intermediate},
                 {"num_hidden_layers", model.layers},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.groups},
                 {"head_dim", model.head_dim},
                 {"max_position_embeddings", arguments.Size("max_position_embeddings")},
                 {"rms_norm_eps", Epsilon(arguments)},
                 {"rope_theta", arguments.Number("rotary_base").value_or(10000)},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", model.tied}};
  if (std::string_view(type) == "llama") {
    config["attention_bias"] = any_bias;
    config["mlp_bias"] = any_bias;
  }
  if (arguments.Flag("use_rope_scaling")) {  // the constants are those of megatron/core's RotaryEmbedding
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", arguments.Number("rope_scaling_factor").value_or(8)},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  } else if (const auto factor = arguments.Number("rotary_seq_len_interpolation_factor")) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", *factor}};
  }
  return config;
}

Json Gpt2ConfigOf(const MegatronModel& model, const MegatronArguments& arguments) {
  // Megatron's fused GELU with a bias, its default, is the approximation by tanh.
  const bool is_exact = !arguments.Flag("bias_gelu_fusion") && !arguments.Flag("openai_gelu");
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocabulary},
          {"n_embd", model.hidden},
          {"n_inner", model.intermediate},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_positions", arguments.Size("max_position_embeddings")},
          {"layer_norm_epsilon", Epsilon(arguments)},
          {"activation_function", is_exact ? "gelu" : "gelu_new"},
          {"embd_pdrop", arguments.Number("hidden_dropout").value_or(0.1)},
          {"resid_pdrop", arguments.Number("hidden_dropout").value_or(0.1)},
          {"attn_pdrop", arguments.Number("attention_dropout").value_or(0.1)},
          {"tie_word_embeddings", model.tied}};
}

}  // namespace

Result<MegatronModel> ModelOfArguments(const Pickle& pickle, const Pickle::Value& arguments) {
  const MegatronArguments given(pickle, arguments);
  MR_TRY(CheckFeatures(given));
  MegatronModel model{.layers = given.Size("num_layers"),
                      .hidden = given.Size("hidden_size"),
                      .heads = given.Size("num_attention_heads"),
                      .head_dim = given.Size("kv_channels"),
                      .intermediate = given.Size("ffn_hidden_size"),
                      .groups = given.Size("num_query_groups"),
                      .vocabulary = given.Size("vocab_size"),
                      .tied = !given.Flag("untie_embeddings_and_output_weights")};
  if (!given.Flag("group_query_attention")) model.groups = model.heads;
  if (model.head_dim == 0 && model.heads > 0) model.head_dim = model.hidden / model.heads;
  model.has_padding = model.vocabulary == 0;
  if (model.has_padding) model.vocabulary = given.Size("padded_vocab_size");
  const bool rope = given.Text("position_embedding_type") == "rope" || given.Flag("use_rotary_position_embeddings");
  const bool rms = given.Text("normalization") == "RMSNorm", gated = given.Flag("swiglu");
  if (rope && rms && gated) {
    MR_TRY(CheckSizes(model));
    model.config = MR_TRY(LlamaConfigOf(model, given));
    return model;
  }
  const bool biases = given.Flag("add_bias_linear");
  if (rope || rms || gated || !biases || given.Flag("qk_layernorm")) {
    return Fail(
        Unsupported(fmt::format("{}, {}, {} and {}", rms ? "RMSNorm" : "LayerNorm", gated ? "SwiGLU" : "GELU",
                                rope ? "rotary embeddings" : "learned positions", biases ? "biases" : "no biases")));
  }
  model.family = MegatronFamily::kGpt2;
  MR_TRY(CheckSizes(model));
  model.config = Gpt2ConfigOf(model, given);
  return model;
}

Result<MegatronModel> ModelOfConfig(const Json& config) {
  const std::string type = MR_TRY(JsonString(config, "model_type"));
  const auto optional = [&](const char* name, std::uint64_t otherwise) -> Result<std::uint64_t> {
    const Json* member = JsonFind(config, name);
    if (member == nullptr || member->is_null()) return otherwise;
    return JsonUint(config, name);
  };
  MegatronModel model{.config = config};
  const Json* tied = JsonFind(config, "tie_word_embeddings");
  model.vocabulary = MR_TRY(JsonUint(config, "vocab_size"));
  if (type == "gpt2") {
    model.family = MegatronFamily::kGpt2;
    model.layers = MR_TRY(JsonUint(config, "n_layer"));
    model.hidden = MR_TRY(JsonUint(config, "n_embd"));
    model.heads = model.groups = MR_TRY(JsonUint(config, "n_head"));
    model.head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
    model.intermediate = MR_TRY(optional("n_inner", model.hidden > kMaxSize ? 0 : 4 * model.hidden));
    model.tied = tied == nullptr || !tied->is_boolean() || tied->get<bool>();
  } else if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3") {
    model.layers = MR_TRY(JsonUint(config, "num_hidden_layers"));
    model.hidden = MR_TRY(JsonUint(config, "hidden_size"));
    model.heads = MR_TRY(JsonUint(config, "num_attention_heads"));
    model.groups = MR_TRY(optional("num_key_value_heads", model.heads));
    model.head_dim = MR_TRY(optional("head_dim", model.heads > 0 ? model.hidden / model.heads : 0));
    model.intermediate = MR_TRY(JsonUint(config, "intermediate_size"));
    model.tied = tied != nullptr && tied->is_boolean() && tied->get<bool>();
  } else {
    return Fail(Code::kUnsupported,
                "models of type {} are not imported from Megatron; llama, mistral, qwen2, qwen3 and "
                "gpt2 are",
                type);
  }
  MR_TRY(CheckSizes(model));
  return model;
}

}  // namespace millrace::checkpoint
