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

/// Reads which layers have a window of how many keys. Qwen's files name a window that is often switched off.
Status ReadWindows(const Json& json, std::string_view what, LlamaConfig& config) {
  const bool is_qwen = IsQwen(config.model_type);
  const bool is_on = !is_qwen || MR_TRY(OptionalFlag(json, "use_sliding_window", false));
  // transformers' classes other than Llama's have a window of this size where a file does not name one.
  const std::int64_t usual = config.model_type == "llama" ? 0 : 4096;
  const std::int64_t window =
      JsonFind(json, "sliding_window") == nullptr ? usual : MR_TRY(OptionalInt(json, "sliding_window", 0));
  if (window < 0)
    return Fail(Code::kInvalidArgument, "{}: sliding_window is {}; expected at least 0, or null", what, window);
  config.sliding_window = is_on ? window : 0;
  // transformers' default, too. The first layers are full.
  const std::int64_t full_layers = is_qwen ? MR_TRY(OptionalInt(json, "max_window_layers", 28)) : 0;
  if (full_layers < 0)
    return Fail(Code::kInvalidArgument, "{}: max_window_layers is {}; expected at least 0", what, full_layers);
  if (!MixesLayers(config.model_type)) return {};
  if (const Json* types = JsonFind(json, "layer_types"); types != nullptr && !types->is_null()) {
    config.has_window = MR_TRY(ReadLayerTypes(*types, what, config.num_layers));
    if (config.sliding_window == 0 && Has(config.has_window, true)) {
      return Fail(Code::kInvalidArgument, "{}: layer_types names {}, but there is no {}; set it, or change layer_types",
                  what, kWindowLayer, is_on ? "sliding_window" : "use_sliding_window");
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
  json["layer_types"] = LayerTypesJson(has_window);
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
  Json json = NewLlamaVariant(model_type, sizes);
  // A new model has a window only if the job file says so, and then in all layers.
  json["sliding_window"] = nullptr;
  json["max_window_layers"] = 0;
  return json;
}

/// Checks the numbers that config.json may have said.
Status CheckVariant(const LlamaVariant& variant, std::string_view what) {
  struct Factor {
    std::string_view what;
    double value, least;
  };
  for (const Factor& factor : {Factor{"the factor of embeddings", variant.embedding_scale, 1e-9},
                               Factor{"the factor of attention scores", variant.attention_scale, 0},
                               Factor{"the factor of what blocks add", variant.residual_scale, 1e-9},
                               Factor{"the factor of logits", variant.logit_scale, 1e-9},
                               Factor{"the cap of attention scores", variant.attention_softcap, 0},
                               Factor{"the cap of logits", variant.logit_softcap, 0},
                               Factor{"the RoPE base of layers with a window", variant.window_rope_theta, 0}}) {
    if (factor.value >= factor.least && factor.value <= 1e9) continue;
    return Fail(Code::kInvalidArgument, "{}: {} is {}; it must be positive and at most 1e9", what, factor.what,
                factor.value);
  }
  return {};
}

}  // namespace

Json NewLlamaVariant(std::string_view model_type, const ModelSizes& sizes) {
  return {
      {"model_type", model_type},
      {"vocab_size", sizes.vocab_size},
      {"hidden_size", sizes.hidden_size},
      {"intermediate_size", sizes.intermediate_size > 0 ? sizes.intermediate_size : UsualInnerSize(sizes.hidden_size)},
      {"num_hidden_layers", sizes.num_layers},
      {"num_attention_heads", sizes.num_heads},
      {"num_key_value_heads", sizes.num_kv_heads > 0 ? sizes.num_kv_heads : sizes.num_heads},
      {"max_position_embeddings", sizes.max_positions},
      {"rms_norm_eps", 1e-5}};  // of Llama 2 and 3
}

Result<std::vector<bool>> ReadLayerTypes(const Json& types, std::string_view what, std::int64_t layers) {
  if (!types.is_array() || std::ssize(types) != layers) {
    return Fail(Code::kInvalidArgument, "{}: layer_types must be a list of {} types, one for each layer", what, layers);
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

Json LayerTypesJson(const std::vector<bool>& has_window) {
  Json types = Json::array();
  for (const bool windowed : has_window) types.push_back(windowed ? kWindowLayer : kFullLayer);
  return types;
}

FolderNames LlamaFolderNames(bool tied) {
  static constexpr std::string_view kTied[] = {"lm_head.weight"};
  static constexpr std::string_view kComputed[] = {".rotary_emb.inv_freq"};
  return {
      .prefix = "model.", .embedding = "embed_tokens.weight", .tied = tied, .tied_names = kTied, .computed = kComputed};
}

ModelFamily LlamaFamily() {
  static constexpr std::string_view kTypes[] = {"llama", "mistral", "ministral", "qwen2", "qwen3"};
  static constexpr std::string_view kOptions[] = {
      "head_dim",          "rms_norm_eps",   "rope_theta",         "rope_scaling",   "initializer_range",
      "attention_dropout", "attention_bias", "mlp_bias",           "sliding_window", "use_sliding_window",
      "max_window_layers", "layer_types",    "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = [](const Json& json, std::string_view what) -> Result<std::shared_ptr<const ModelConfig>> {
            return std::shared_ptr<const ModelConfig>(MR_TRY(LlamaConfig::FromJson(json, what)));
          },
          .new_model = NewLlama,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/false)};
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

Json LlamaConfig::SharedJson(std::string_view architecture) const {
  Json json = {{"architectures", {architecture}},
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
               {"initializer_range", initializer_stddev},
               {"attention_dropout", attention_dropout},
               {"tie_word_embeddings", tie_word_embeddings}};
  if (rope_scaling.method != RopeScaling::Method::kNone) json["rope_scaling"] = RopeScalingJson(rope_scaling);
  return json;
}

Json LlamaConfig::ToJson() const {
  Json json = SharedJson(ArchitectureOf(model_type));
  json["hidden_act"] = "silu";
  if (model_type == "llama" || model_type == "qwen3") json["attention_bias"] = qkv_bias;
  if (model_type == "llama") json["mlp_bias"] = mlp_bias;
  WriteWindows(json, *this);
  return json;
}

Status LlamaConfig::ReadShared(const Json& json, std::string_view what) {
  model_type = MR_TRY(JsonString(json, "model_type"));
  vocab_size = MR_TRY(JsonInt(json, "vocab_size"));
  hidden_size = MR_TRY(JsonInt(json, "hidden_size"));
  intermediate_size = MR_TRY(JsonInt(json, "intermediate_size"));
  num_layers = MR_TRY(JsonInt(json, "num_hidden_layers"));
  num_heads = MR_TRY(JsonInt(json, "num_attention_heads"));
  num_kv_heads = MR_TRY(OptionalInt(json, "num_key_value_heads", num_heads));
  head_dim = MR_TRY(OptionalInt(json, "head_dim", head_dim));
  max_positions = MR_TRY(OptionalInt(json, "max_position_embeddings", max_positions));
  rms_norm_eps = MR_TRY(OptionalNumber(json, "rms_norm_eps", rms_norm_eps));
  initializer_stddev = MR_TRY(OptionalDeviation(json, "initializer_range", initializer_stddev, what));
  attention_dropout = MR_TRY(OptionalProbability(json, "attention_dropout", attention_dropout, what));
  rope_scaling = MR_TRY(ReadRopeScaling(json, what, max_positions, rope_theta));
  tie_word_embeddings = MR_TRY(OptionalFlag(json, "tie_word_embeddings", tie_word_embeddings));
  return {};
}

Status LlamaConfig::ReadAttentionBias(const Json& json, bool absent, bool of_output) {
  qkv_bias = MR_TRY(OptionalFlag(json, "attention_bias", absent));
  output_bias = of_output && qkv_bias;
  return {};
}

Status LlamaConfig::ReadPartialRotary(const Json& json, double absent, std::string_view what) {
  double factor = MR_TRY(OptionalNumber(json, "partial_rotary_factor", absent));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = JsonFind(json, key);
    if (rope != nullptr && rope->is_object()) factor = MR_TRY(OptionalNumber(*rope, "partial_rotary_factor", factor));
  }
  if (!(factor > 0) || factor > 1) {
    return Fail(Code::kInvalidArgument, "{}: partial_rotary_factor {} must be above 0 and at most 1", what, factor);
  }
  MR_TRY(CheckSizes(sizes(), what));
  variant.rotary_dim = static_cast<std::int64_t>(static_cast<double>(HeadDim()) * factor);
  if (variant.rotary_dim >= 1) return {};
  return Fail(Code::kInvalidArgument,
              "{}: partial_rotary_factor {} leaves none of a head's {} dimensions; expected a larger one", what, factor,
              HeadDim());
}

Status LlamaConfig::CheckWholeRotary(const Json& json, std::string_view what) {
  MR_TRY(ReadPartialRotary(json, 1, what));
  if (variant.rotary_dim == HeadDim()) {
    variant.rotary_dim = 0;
    return {};
  }
  return Fail(Code::kUnsupported, "{}: partial_rotary_factor is not implemented for {}; remove it if it is not meant",
              what, model_type);
}

Status LlamaConfig::ReadActivation(const Json& json, std::string_view key, std::string_view name,
                                   std::string_view what) {
  const std::string given = MR_TRY(OptionalText(json, key, std::string(name)));
  if (given == name) return {};
  return Fail(Code::kUnsupported, "{}: {} \"{}\" is not implemented; {} is", what, key, given, name);
}

Result<std::shared_ptr<LlamaConfig>> LlamaConfig::FromJson(const Json& json, std::string_view what) {
  auto config = std::make_shared<LlamaConfig>();
  LlamaConfig& c = *config;
  // Where transformers' class has a default of its own, a file may leave the member out.
  const bool is_qwen3 = MR_TRY(JsonString(json, "model_type")) == "qwen3";
  if (is_qwen3) c.head_dim = 128;
  c.rms_norm_eps = 1e-6;
  MR_TRY(c.ReadShared(json, what));
  MR_TRY(c.ReadActivation(json, "hidden_act", "silu", what));
  const bool attention_bias = MR_TRY(OptionalFlag(json, "attention_bias", false));
  c.qkv_bias = attention_bias || c.model_type == "qwen2";
  c.output_bias = attention_bias && c.model_type != "qwen2";
  c.mlp_bias = MR_TRY(OptionalFlag(json, "mlp_bias", false));
  MR_TRY(c.CheckWholeRotary(json, what));
  if (is_qwen3) c.variant.qk_norm = QueryKeyNorm::kHeads;
  MR_TRY(c.Validate(what));
  MR_TRY(ReadWindows(json, what, c));
  return config;
}

Status LlamaConfig::Validate(std::string_view what) const {
  if (head_dim == 0 && num_heads > 0 && hidden_size % num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of {} heads, and head_dim does not say more; set head_dim, or "
                "change hidden_size",
                what, hidden_size, num_heads);
  }
  MR_TRY(CheckSizes(sizes(), what));
  if (RotaryDim() % 2 != 0 || RotaryDim() < 2 || RotaryDim() > HeadDim()) {
    return Fail(Code::kInvalidArgument,
                "{}: of a head's {} dimensions, RoPE cannot rotate {}; expected a positive even number", what,
                HeadDim(), RotaryDim());
  }
  if (!(rms_norm_eps > 0)) return Fail(Code::kInvalidArgument, "{}: rms_norm_eps must be positive", what);
  MR_TRY(CheckVariant(variant, what));
  return CheckRopeScaling(rope_scaling, rope_sizes(), what);
}

}  // namespace millrace::engine
