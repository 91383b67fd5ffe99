// SmolLM3 (Hugging Face 2025): a Llama in which every fourth layer has no positions (NoPE). Layers without positions
// may have a window. Names and numerics are those of transformers' SmolLM3ForCausalLM.
#include <algorithm>

#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kUsualInterval = 4;

class Smollm3Config final : public LlamaConfig {
 public:
  Smollm3Config() {
    max_positions = 32768;
    rms_norm_eps = 1e-6;
    rope_theta = 2e6;
    tie_word_embeddings = true;
  }
  Status Read(const Json& json, std::string_view what) {
    MR_TRY(ReadShared(json, what));
    MR_TRY(CheckWholeRotary(json, what));
    if (JsonFind(json, "num_key_value_heads") == nullptr) num_kv_heads = 4;  // transformers' default
    MR_TRY(ReadActivation(json, "hidden_act", "silu", what));
    MR_TRY(ReadAttentionBias(json, false));
    mlp_bias = MR_TRY(OptionalFlag(json, "mlp_bias", false));
    MR_TRY(CheckSizes(sizes(), what));  // before lists of layers are made
    MR_TRY(ReadRopeLayers(json, what));
    return ReadWindows(json, what);
  }
  Json ToJson() const override {
    Json json = SharedJson("SmolLM3ForCausalLM");
    json["hidden_act"] = "silu";
    json["attention_bias"] = qkv_bias;
    json["mlp_bias"] = mlp_bias;
    json["no_rope_layer_interval"] = interval_;
    json["no_rope_layers"] = Json::array();
    std::vector<bool> windows;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      json["no_rope_layers"].push_back(HasRope(layer) ? 1 : 0);
      windows.push_back(WindowOf(layer) > 0);
    }
    json["use_sliding_window"] = sliding_window > 0;
    json["sliding_window"] = sliding_window > 0 ? Json(sliding_window) : Json(nullptr);
    json["layer_types"] = LayerTypesJson(windows);
    return json;
  }

 private:
  /// In no_rope_layers, 1 stands for a layer with positions.
  Status ReadRopeLayers(const Json& json, std::string_view what) {
    interval_ = MR_TRY(OptionalInt(json, "no_rope_layer_interval", kUsualInterval));
    if (interval_ < 1)
      return Fail(Code::kInvalidArgument, "{}: no_rope_layer_interval is {}; expected at least 1", what, interval_);
    const Json* layers = JsonFind(json, "no_rope_layers");
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      if (layers == nullptr || layers->is_null()) {
        variant.has_rope.push_back((layer + 1) % interval_ != 0);
        continue;
      }
      const auto at = static_cast<std::size_t>(layer);
      if (!layers->is_array() || at >= layers->size() || !((*layers)[at] == 0 || (*layers)[at] == 1)) {
        return Fail(Code::kInvalidArgument,
                    "{}: no_rope_layers must be a list of {} numbers, one for each layer: 1 with RoPE, 0 without", what,
                    num_layers);
      }
      variant.has_rope.push_back((*layers)[at] == 1);
    }
    return {};
  }

  Status ReadWindows(const Json& json, std::string_view what) {
    const bool is_on = MR_TRY(OptionalFlag(json, "use_sliding_window", false));
    const std::int64_t window = MR_TRY(OptionalInt(json, "sliding_window", 0));
    if (window < 0) return Fail(Code::kInvalidArgument, "{}: sliding_window is {}; expected at least 0", what, window);
    if (is_on) sliding_window = window;
    if (const Json* types = JsonFind(json, "layer_types"); types != nullptr && !types->is_null()) {
      has_window = MR_TRY(ReadLayerTypes(*types, what, num_layers));
    } else {
      for (const bool rotates : variant.has_rope) has_window.push_back(sliding_window > 0 && !rotates);
    }
    const bool any = std::ranges::find(has_window, true) != has_window.end();
    if (any && sliding_window == 0) {
      return Fail(Code::kInvalidArgument,
                  "{}: layer_types names sliding_attention, but there is no {}; set it, or change layer_types", what,
                  is_on ? "sliding_window" : "use_sliding_window");
    }
    if (!any) {
      sliding_window = 0;
      has_window.clear();
    }
    return {};
  }

  std::int64_t interval_ = kUsualInterval;
};

}  // namespace

ModelFamily Smollm3Family() {
  static constexpr std::string_view kTypes[] = {"smollm3"};
  static constexpr std::string_view kOptions[] = {
      "head_dim",           "rms_norm_eps",      "rope_theta",  "rope_scaling",           "initializer_range",
      "attention_bias",     "attention_dropout", "mlp_bias",    "no_rope_layer_interval", "no_rope_layers",
      "use_sliding_window", "sliding_window",    "layer_types", "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<Smollm3Config>,
          .new_model = NewLlamaVariant,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/true)};
}

}  // namespace millrace::engine
