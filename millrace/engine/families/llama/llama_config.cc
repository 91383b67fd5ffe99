#include "millrace/engine/families/llama/llama_config.h"

#include <algorithm>

#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {
namespace {

constexpr std::string_view kFullLayer = "full_attention", kWindowLayer = "sliding_attention";

bool IsQwen(std::string_view model_type) { return model_type == "qwen2" || model_type == "qwen3"; }
/// Whether layer_types may say which layers have the window.
bool MixesLayers(std::string_view model_type) { return IsQwen(model_type) || model_type == "ministral"; }

bool Has(const std::vector<bool>& flags, bool flag) { return std::ranges::find(flags, flag) != flags.end(); }

/// Returns which layers have the window, as layer_types says.
Result<std::vector<bool>> ReadLayerTypes(const Json& types, std::string_view what, const LlamaConfig& config) {
  if (!types.is_array() || std::ssize(types) != config.num_layers) {
    return Fail(Code::kInvalidArgument, "{}: layer_types must be a list of {} types, one for each layer", what,
                config.num_layers);
  }
  std::vector<bool> has_window;
  for (const Json& type : types) {
    if (type != kFullLayer && type != kWindowLayer) {
      return Fail(Code::kUnsupported, "{}: the layer type {} is not implemented; {} and {} are", what, DumpJson(type),
                  kFullLayer, kWindowLayer);
    }
    has_window.push_back(type == kWindowLayer);
  }
  return has_window;
}

/// Reads which layers have a window of how many keys. Qwen's files name a window that is often switched off.
Status ReadWindows(const Json& json, std::string_view what, LlamaConfig& config) {
  const bool is_qwen = IsQwen(config.model_type);
  const bool is_on = !is_qwen || MR_TRY(OptionalFlag(json, "use_sliding_window", false));
  // transformers' classes other than Llama's have a window of this size where a file does not name one.
  const std::int64_t usual = config.model_type == "llama" ? 0 : 4096;
  const std::int64_t window =
      JsonFind(json, "sliding_window") == nullptr ? usual : MR_TRY(OptionalInt(json, "sliding_window", 0));
  if (window < 0) return Fail(Code::kInvalidArgument, "{}: sliding_window is {}", what, window);
  config.sliding_window = is_on ? window : 0;
  // transformers' default, too. The first layers are full.
  const std::int64_t full_layers = is_qwen ? MR_TRY(OptionalInt(json, "max_window_layers", 28)) : 0;
  if (full_layers < 0) return Fail(Code::kInvalidArgument, "{}: max_window_layers is {}", what, full_layers);
  if (!MixesLayers(config.model_type)) return {};
  if (const Json* types = JsonFind(json, "layer_types"); types != nullptr && !types->is_null()) {
    config.has_window = MR_TRY(ReadLayerTypes(*types, what, config));
    if (config.sliding_window == 0 && Has(config.has_window, true)) {
      return Fail(Code::kInvalidArgument, "{}: layer_types names {}, but there is no {}", what, kWindowLayer,
                  is_on ? "sliding_window" : "use_sliding_window");
    }
  } else if (config.sliding_window > 0 && full_layers > 0) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) config.has_window.push_back(i >= full_layers);
  }
  if (!Has(config.has_window, true) && !config.has_window.empty()) config.sliding_window = 0;
  if (!Has(config.has_window, false) || config.sliding_window == 0) config.has_window.clear();
  return {};
}

void WriteWindows(Json& json, const LlamaConfig& config) {
  const std::int64_t window = config.sliding_window;
  const auto& has_window = config.has_window;
  // Llama's class of transformers has no window. Our own checkpoints keep what the job file says.
  if (config.model_type != "llama" || window > 0) json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  if (IsQwen(config.model_type)) {
    json["use_sliding_window"] = window > 0;
    // Programs that do not know layer_types take the layers before the first window as full ones.
    const auto first = std::ranges::find(has_window, true) - has_window.begin();
    json["max_window_layers"] = window > 0 ? first : config.num_layers;
  }
  if (has_window.empty()) return;
  json["layer_types"] = Json::array();
  for (const bool windowed : has_window) json["layer_types"].push_back(windowed ? kWindowLayer : kFullLayer);
}

std::string_view ArchitectureOf(std::string_view model_type) {
  if (model_type == "mistral") return "MistralForCausalLM";
  if (model_type == "ministral") return "MinistralForCausalLM";
  if (model_type == "qwen2") return "Qwen2ForCausalLM";
  if (model_type == "qwen3") return "Qwen3ForCausalLM";
  return "LlamaForCausalLM";
}

/// Returns the size of SwiGLU's inner layer: 8/3 of the hidden size, so that three matrices have as many weights as the
/// two of a plain MLP (Shazeer 2020), rounded up to a multiple of 8 for the vector units.
std::int64_t UsualInnerSize(std::int64_t hidden_size) { return (hidden_size * 8 / 3 + 7) / 8 * 8; }

Json NewLlama(std::string_view model_type, const ModelSizes& sizes) {
  Json json = {
      {"model_type", model_type},
      {"vocab_size", sizes.vocab_size},
      {"hidden_size", sizes.hidden_size},
      {"intermediate_size", sizes.intermediate_size > 0 ? sizes.intermediate_size : UsualInnerSize(sizes.hidden_size)},
      {"num_hidden_layers", sizes.num_layers},
      {"num_attention_heads", sizes.num_heads},
      {"num_key_value_heads", sizes.num_kv_heads > 0 ? sizes.num_kv_heads : sizes.num_heads},
      {"max_position_embeddings", sizes.max_positions},
      {"rms_norm_eps", 1e-5}};  // of Llama 2 and 3
  // A new model has a window only if the job file says so, and then in all layers.
  json["sliding_window"] = nullptr;
  json["max_window_layers"] = 0;
  return json;
}

}  // namespace

ModelFamily LlamaFamily() {
  static constexpr std::string_view kTypes[] = {"llama", "mistral", "ministral", "qwen2", "qwen3"};
  static constexpr std::string_view kOptions[] = {
      "head_dim",          "rms_norm_eps",   "rope_theta",         "rope_scaling",   "initializer_range",
      "attention_dropout", "attention_bias", "mlp_bias",           "sliding_window", "use_sliding_window",
      "max_window_layers", "layer_types",    "tie_word_embeddings"};
  static constexpr std::string_view kTied[] = {"lm_head.weight"};
  static constexpr std::string_view kComputed[] = {".rotary_emb.inv_freq"};
  return {
      .model_types = kTypes,
      .parse = [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
        return std::shared_ptr<const ModelConfig>(MR_TRY(LlamaConfig::FromJson(json, what)));
      },
      .new_model = NewLlama,
      .options = kOptions,
      .names = {.prefix = "model.", .embedding = "embed_tokens.weight", .tied_names = kTied, .computed = kComputed}};
}

ModelSizes LlamaConfig::sizes() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = num_heads > 0 ? HeadDim() : 0,
          .max_positions = RopePositions(rope_scaling, max_positions)};
}

Json LlamaConfig::ToJson() const {
  Json json = {{"architectures", {ArchitectureOf(model_type)}},
               {"model_type", model_type},
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
               {"initializer_range", initializer_stddev},
               {"attention_dropout", attention_dropout},
               {"tie_word_embeddings", tie_word_embeddings}};
  if (rope_scaling.method != RopeScaling::Method::kNone) json["rope_scaling"] = RopeScalingJson(rope_scaling);
  if (model_type == "llama" || model_type == "qwen3") json["attention_bias"] = qkv_bias;
  if (model_type == "llama") json["mlp_bias"] = mlp_bias;
  WriteWindows(json, *this);
  return json;
}

Result<std::shared_ptr<LlamaConfig>> LlamaConfig::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<LlamaConfig>();
  LlamaConfig& c = *config;
  c.model_type = MR_TRY(JsonString(json, "model_type"));
  c.vocab_size = MR_TRY(JsonInt(json, "vocab_size"));
  c.hidden_size = MR_TRY(JsonInt(json, "hidden_size"));
  c.intermediate_size = MR_TRY(JsonInt(json, "intermediate_size"));
  c.num_layers = MR_TRY(JsonInt(json, "num_hidden_layers"));
  c.num_heads = MR_TRY(JsonInt(json, "num_attention_heads"));
  c.num_kv_heads = MR_TRY(OptionalInt(json, "num_key_value_heads", c.num_heads));
  // Where transformers' class has a default of its own, a file may leave the member out.
  c.head_dim = MR_TRY(OptionalInt(json, "head_dim", c.model_type == "qwen3" ? 128 : 0));
  c.max_positions = MR_TRY(OptionalInt(json, "max_position_embeddings", 2048));
  c.rms_norm_eps = MR_TRY(OptionalNumber(json, "rms_norm_eps", 1e-6));
  c.initializer_stddev = MR_TRY(OptionalDeviation(json, "initializer_range", 0.02, what));
  c.attention_dropout = MR_TRY(OptionalProbability(json, "attention_dropout", 0, what));
  c.rope_scaling = MR_TRY(ReadRopeScaling(json, what, c.max_positions, c.rope_theta));
  const std::string activation = MR_TRY(OptionalText(json, "hidden_act", "silu"));
  if (activation != "silu") {
    return Fail(Code::kUnsupported, "{}: hidden_act \"{}\" is not implemented; silu is", what, activation);
  }
  const bool attention_bias = MR_TRY(OptionalFlag(json, "attention_bias", false));
  c.qkv_bias = attention_bias || c.model_type == "qwen2";
  c.output_bias = attention_bias && c.model_type != "qwen2";
  c.mlp_bias = MR_TRY(OptionalFlag(json, "mlp_bias", false));
  c.qk_norm = c.model_type == "qwen3";
  c.tie_word_embeddings = MR_TRY(OptionalFlag(json, "tie_word_embeddings", false));
  MR_TRY(c.Validate(what));
  MR_TRY(ReadWindows(json, what, c));
  return config;
}

Status LlamaConfig::Validate(std::string_view what) const {
  if (head_dim == 0 && num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of {} heads, and head_dim does not say more", what, hidden_size,
                num_heads);
  }
  MR_TRY(CheckSizes(sizes(), what));
  if (HeadDim() % 2 != 0)
    return Fail(Code::kInvalidArgument, "{}: head_dim {} is odd; RoPE rotates pairs", what, HeadDim());
  if (!(rms_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: rms_norm_eps must be positive", what);
  return CheckRopeScaling(rope_scaling, rope_sizes(), what);
}

}  // namespace millrace::engine
