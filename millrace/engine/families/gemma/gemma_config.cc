// Gemma 2 and Gemma 3 (Gemma Team 2024, 2025), the models of text: a Llama with norms in front of and behind attention
// and MLP, whose weights count from 1, GeGLU, embeddings times sqrt(hidden_size), and windows in some layers. Gemma 2
// caps scores and logits; Gemma 3 normalizes the heads of queries and keys, and its windows have a RoPE base of their
// own. Names and numerics are those of transformers' Gemma2ForCausalLM and Gemma3ForCausalLM.
#include <algorithm>
#include <cmath>

#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

class GemmaConfig final : public LlamaConfig {
 public:
  GemmaConfig() {
    rms_norm_eps = 1e-6;
    head_dim = 256;
    tie_word_embeddings = true;
    variant.norms = {.before_attention = "input_layernorm",
                     .after_attention = "post_attention_layernorm",
                     .before_mlp = "pre_feedforward_layernorm",
                     .after_mlp = "post_feedforward_layernorm"};
    variant.norm_offset = 1;
    variant.activation = Activation::kGeluTanh;
    variant.rounds_embedding_scale = true;
  }

  Status Read(const Json& json, std::string_view what) {
    const bool is_third = MR_TRY(JsonString(json, "model_type")) == "gemma3_text";
    max_positions = is_third ? 131072 : 8192;
    rope_theta = is_third ? 1e6 : 1e4;
    Json of_full_layers = json;
    if (is_third) {
      variant.qk_norm = QueryKeyNorm::kHeads;
      of_full_layers = MR_TRY(ReadRopeOfWindows(json, what));
    } else if (const Json* local = JsonFind(json, "rope_local_base_freq"); local != nullptr && !local->is_null()) {
      return Fail(Code::kUnsupported, "{}: gemma2 has no rope_local_base_freq (it is {}); remove it", what,
                  DumpJson(*local));
    }
    MR_TRY(ReadShared(of_full_layers, what));
    MR_TRY(CheckWholeRotary(of_full_layers, what));
    if (JsonFind(json, "num_key_value_heads") == nullptr) num_kv_heads = 4;  // transformers' default
    MR_TRY(ReadActivation(json, "hidden_activation", "gelu_pytorch_tanh", what));
    MR_TRY(ReadAttentionBias(json, false));
    MR_TRY(CheckSizes(sizes(), what));  // before lists of layers are made
    variant.embedding_scale = std::sqrt(static_cast<double>(hidden_size));
    query_scalar_ = MR_TRY(OptionalNumber(json, "query_pre_attn_scalar", 256));
    if (!(query_scalar_ > 0)) {
      return Fail(Code::kInvalidArgument, "{}: query_pre_attn_scalar {} must be positive", what, query_scalar_);
    }
    variant.attention_scale = 1 / std::sqrt(query_scalar_);
    variant.attention_softcap = MR_TRY(ReadCap(json, "attn_logit_softcapping", is_third ? 0 : 50));
    variant.logit_softcap = MR_TRY(ReadCap(json, "final_logit_softcapping", is_third ? 0 : 30));
    if (MR_TRY(OptionalFlag(json, "use_bidirectional_attention", false))) {
      return Fail(Code::kUnsupported,
                  "{}: use_bidirectional_attention true is not implemented; the models here see earlier tokens only",
                  what);
    }
    return ReadWindows(json, what, is_third);
  }

  Json ToJson() const override {
    const bool is_third = model_type == "gemma3_text";
    Json json = SharedJson(is_third ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM");
    json["hidden_activation"] = "gelu_pytorch_tanh";
    if (!is_third) json["hidden_act"] = "gelu_pytorch_tanh";  // as published files have it
    json["attention_bias"] = qkv_bias;
    json["use_bidirectional_attention"] = false;
    // transformers' class takes whole numbers alone. A job file may have others.
    const bool is_whole = query_scalar_ == std::floor(query_scalar_) && query_scalar_ < 1e9;
    json["query_pre_attn_scalar"] = is_whole ? Json(static_cast<std::int64_t>(query_scalar_)) : Json(query_scalar_);
    json["attn_logit_softcapping"] = CapJson(variant.attention_softcap);
    json["final_logit_softcapping"] = CapJson(variant.logit_softcap);
    json["sliding_window"] = sliding_window;
    std::vector<bool> windows;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) windows.push_back(WindowOf(layer) > 0);
    json["layer_types"] = LayerTypesJson(windows);
    if (is_third) json["rope_local_base_freq"] = variant.window_rope_theta;
    return json;
  }

 private:
  /// A cap that is absent has the family's value; null is none.
  static Result<double> ReadCap(const Json& json, std::string_view key, double absent) {
    return JsonFind(json, key) == nullptr ? absent : OptionalNumber(json, key, 0);
  }
  static Json CapJson(double cap) { return cap > 0 ? Json(cap) : Json(nullptr); }

  /// Reads the RoPE base of layers with a window: rope_local_base_freq or, since transformers 5, an object in
  /// rope_parameters. Returns the configuration with what full layers have there.
  Result<Json> ReadRopeOfWindows(const Json& json, std::string_view what) {
    variant.window_rope_theta = MR_TRY(OptionalNumber(json, "rope_local_base_freq", 10000));
    Json of_full_layers = json;
    const Json* rope = JsonFind(json, "rope_parameters");
    if (rope == nullptr || !rope->is_object()) return of_full_layers;
    const Json* full = JsonFind(*rope, "full_attention");
    const Json* near = JsonFind(*rope, "sliding_attention");
    if (full == nullptr && near == nullptr) return of_full_layers;
    of_full_layers["rope_parameters"] = full != nullptr ? *full : Json(nullptr);
    if (near == nullptr || near->is_null()) return of_full_layers;
    const std::string type = MR_TRY(OptionalText(*near, "rope_type", "default"));
    if (type != "default") {
      return Fail(Code::kUnsupported, "{}: RoPE scaling \"{}\" of layers with a window is not implemented", what, type);
    }
    variant.window_rope_theta = MR_TRY(OptionalNumber(*near, "rope_theta", variant.window_rope_theta));
    return of_full_layers;
  }

  /// Without layer_types, every second layer of Gemma 2 is full, the first one is not; of Gemma 3, each sixth one.
  Status ReadWindows(const Json& json, std::string_view what, bool is_third) {
    sliding_window = MR_TRY(OptionalInt(json, "sliding_window", 4096));
    const std::int64_t pattern = MR_TRY(OptionalInt(json, "sliding_window_pattern", is_third ? 6 : 2));
    if (sliding_window < 1 || pattern < 1) {
      return Fail(Code::kInvalidArgument, "{}: sliding_window {} and sliding_window_pattern {} must be positive", what,
                  sliding_window, pattern);
    }
    if (const Json* types = JsonFind(json, "layer_types"); types != nullptr && !types->is_null()) {
      has_window = MR_TRY(ReadLayerTypes(*types, what, num_layers));
    } else {
      for (std::int64_t layer = 0; layer < num_layers; ++layer) has_window.push_back((layer + 1) % pattern != 0);
    }
    return {};
  }

  double query_scalar_ = 256;  // scores are divided by its square root
};

Json NewGemma(std::string_view model_type, const ModelSizes& sizes) {
  Json json = NewLlamaVariant(model_type, sizes);
  json["rms_norm_eps"] = 1e-6;
  if (sizes.num_heads > 0 && sizes.hidden_size >= sizes.num_heads) {
    json["head_dim"] = json["query_pre_attn_scalar"] = sizes.hidden_size / sizes.num_heads;
  }
  return json;
}

}  // namespace

ModelFamily GemmaFamily() {
  static constexpr std::string_view kTypes[] = {"gemma2", "gemma3_text"};
  static constexpr std::string_view kOptions[] = {"head_dim",
                                                  "rms_norm_eps",
                                                  "rope_theta",
                                                  "rope_scaling",
                                                  "rope_local_base_freq",
                                                  "initializer_range",
                                                  "attention_bias",
                                                  "attention_dropout",
                                                  "query_pre_attn_scalar",
                                                  "attn_logit_softcapping",
                                                  "final_logit_softcapping",
                                                  "sliding_window",
                                                  "sliding_window_pattern",
                                                  "layer_types",
                                                  "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<GemmaConfig>,
          .new_model = NewGemma,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/true)};
}

}  // namespace millrace::engine
