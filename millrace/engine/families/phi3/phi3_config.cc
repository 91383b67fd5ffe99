// Phi-3 and Phi-4 (Abdin et al. 2024): a Llama whose queries, keys and values are one matrix, as are the two input
// layers of the MLP. Some rotate a part of each head, some scale positions as LongRoPE. Names and numerics are those of
// transformers' Phi3ForCausalLM.
#include "millrace/engine/config/config_fields.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/llama/llama_config.h"

namespace millrace::engine {
namespace {

class Phi3Config final : public LlamaConfig {
 public:
  Phi3Config() {
    max_positions = 4096;
    variant.joined_qkv = variant.joined_gate = true;
  }
  Status Read(const Json& json, std::string_view what) {
    const Json current = WithCurrentNames(json);
    MR_TRY(ReadShared(current, what));
    MR_TRY(ReadPartialRotary(current, 1, what));
    MR_TRY(ReadActivation(json, "hidden_act", "silu", what));
    if (rope_scaling.method != RopeScaling::Method::kNone && rope_scaling.method != RopeScaling::Method::kLongRope) {
      return Fail(Code::kUnsupported, "{}: RoPE scalings of phi3 other than longrope are not implemented", what);
    }
    if (MR_TRY(OptionalFlag(json, "attention_bias", false))) {
      return Fail(Code::kUnsupported, "{}: attention_bias true is not implemented for phi3; its class has no biases",
                  what);
    }
    original_max_positions_ = MR_TRY(OptionalInt(json, "original_max_position_embeddings", 4096));
    variant.residual_dropout = MR_TRY(OptionalProbability(json, "resid_pdrop", 0, what));
    embedding_dropout_ = MR_TRY(OptionalProbability(json, "embd_pdrop", 0, what));
    sliding_window = MR_TRY(OptionalInt(json, "sliding_window", 0));
    if (sliding_window < 0 || original_max_positions_ < 1) {
      return Fail(Code::kInvalidArgument,
                  "{}: sliding_window {} must not be negative, and original_max_position_embeddings {} positive", what,
                  sliding_window, original_max_positions_);
    }
    return {};
  }
  Json ToJson() const override {
    Json json = SharedJson("Phi3ForCausalLM");
    json["hidden_act"] = "silu";
    json["original_max_position_embeddings"] = original_max_positions_;
    json["partial_rotary_factor"] = partial_rotary_factor();
    json["resid_pdrop"] = variant.residual_dropout;
    json["embd_pdrop"] = embedding_dropout_;
    json["sliding_window"] = sliding_window > 0 ? Json(sliding_window) : Json(nullptr);
    if (rope_scaling.method == RopeScaling::Method::kNone) return json;
    // Older classes of transformers take these three members alone.
    json["rope_scaling"] = {
        {"type", "longrope"}, {"short_factor", rope_scaling.short_factors}, {"long_factor", rope_scaling.long_factors}};
    const double ratio = static_cast<double>(max_positions) / static_cast<double>(original_max_positions_);
    if (rope_scaling.attention_factor != LongRopeAttentionFactor(ratio, original_max_positions_)) {
      json["rope_scaling"]["attention_factor"] = rope_scaling.attention_factor;
    }
    return json;
  }

 private:
  /// Returns the file with the names of today: LongRoPE was called "su", and "yarn".
  static Json WithCurrentNames(const Json& json) {
    Json current = json;
    if (JsonFind(json, "original_max_position_embeddings") == nullptr) {
      current["original_max_position_embeddings"] = 4096;
    }
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      if (!current.contains(key) || !current[key].is_object()) continue;
      Json& rope = current[key];
      for (const char* name : {"type", "rope_type"}) {
        if (rope.contains(name) && (rope[name] == "su" || rope[name] == "yarn")) rope[name] = "longrope";
      }
    }
    return current;
  }

  std::int64_t original_max_positions_ = 4096;
  double embedding_dropout_ = 0;  // transformers' class has the member and drops nothing
};

}  // namespace

ModelFamily Phi3Family() {
  static constexpr std::string_view kTypes[] = {"phi3"};
  static constexpr std::string_view kOptions[] = {
      "head_dim",       "rms_norm_eps",          "rope_theta",
      "rope_scaling",   "initializer_range",     "attention_dropout",
      "resid_pdrop",    "partial_rotary_factor", "original_max_position_embeddings",
      "sliding_window", "tie_word_embeddings"};
  return {.model_types = kTypes,
          .parse = ReadVariant<Phi3Config>,
          .new_model = NewLlamaVariant,
          .options = kOptions,
          .names = LlamaFolderNames(/*tied=*/false)};
}

}  // namespace millrace::engine
