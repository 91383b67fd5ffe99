#include "millrace/engine/config/config_members.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "millrace/engine/config/families.h"

namespace millrace::engine {
namespace {

/// A member by which another family changes what a model computes.
struct ForeignMember {
  std::string_view name;
  double neutral = 0;  ///< the number that changes nothing
};
constexpr ForeignMember kForeign[] = {{"add_cross_attention"},
                                      {"alibi"},
                                      {"attention_multiplier"},
                                      {"attn_logit_softcapping"},
                                      {"clip_qkv"},
                                      {"embedding_multiplier", 1},
                                      {"final_logit_softcapping"},
                                      {"is_encoder_decoder"},
                                      {"kv_lora_rank"},
                                      {"logit_scale", 1},
                                      {"logits_scaling", 1},
                                      {"n_routed_experts"},
                                      {"no_rope_layers"},
                                      {"num_experts"},
                                      {"num_local_experts"},
                                      {"parallel_attn"},
                                      {"partial_rotary_factor", 1},
                                      {"q_lora_rank"},
                                      {"qk_layernorm"},
                                      {"qk_norm"},
                                      {"query_pre_attn_scalar"},
                                      {"residual_multiplier", 1},
                                      {"rope_interleave"},
                                      {"rotary_pct", 1},
                                      {"scale_depth"},
                                      {"scale_emb", 1},
                                      {"use_parallel_residual"},
                                      {"use_qk_norm"}};

/// Members of transformers' base class, and of the families here beside those that their configurations write. None of
/// them changes the logits, or the family's reader looks at them.
constexpr std::string_view kCommon[] = {"_attn_implementation",
                                        "_attn_implementation_autoset",
                                        "_name_or_path",
                                        "_sliding_window_pattern",
                                        "attention_bias",
                                        "bad_words_ids",
                                        "begin_suppress_tokens",
                                        "bos_token_id",
                                        "cache_implementation",
                                        "chunk_size_feed_forward",
                                        "cross_attention_hidden_size",
                                        "decoder_start_token_id",
                                        "diversity_penalty",
                                        "do_sample",
                                        "dtype",
                                        "early_stopping",
                                        "encoder_no_repeat_ngram_size",
                                        "eos_token_id",
                                        "exponential_decay_length_penalty",
                                        "finetuning_task",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "gradient_checkpointing",
                                        "head_dim",
                                        "id2label",
                                        "is_decoder",
                                        "label2id",
                                        "layer_types",
                                        "length_penalty",
                                        "max_length",
                                        "max_window_layers",
                                        "min_length",
                                        "mlp_bias",
                                        "n_ctx",
                                        "name_or_path",
                                        "no_repeat_ngram_size",
                                        "num_beam_groups",
                                        "num_beams",
                                        "num_labels",
                                        "num_return_sequences",
                                        "output_attentions",
                                        "output_hidden_states",
                                        "output_scores",
                                        "pad_token_id",
                                        "prefix",
                                        "pretraining_tp",
                                        "problem_type",
                                        "pruned_heads",
                                        "quantization_config",
                                        "remove_invalid_values",
                                        "reorder_and_upcast_attn",
                                        "repetition_penalty",
                                        "return_dict",
                                        "return_dict_in_generate",
                                        "rope_parameters",
                                        "rope_scaling",
                                        "rotary",
                                        "scale_attn_by_inverse_layer_idx",
                                        "scale_attn_weights",
                                        "sep_token_id",
                                        "sliding_window",
                                        "suppress_tokens",
                                        "task_specific_params",
                                        "temperature",
                                        "tf_legacy_loss",
                                        "tie_encoder_decoder",
                                        "tie_word_embeddings",
                                        "tokenizer_class",
                                        "top_k",
                                        "top_p",
                                        "torch_dtype",
                                        "torchscript",
                                        "transformers_version",
                                        "typical_p",
                                        "use_bfloat16",
                                        "use_cache",
                                        "use_sliding_window"};

/// Returns whether the value asks for nothing.
bool ChangesNothing(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == neutral;
  return (value.is_array() || value.is_object()) && value.empty();
}

}  // namespace

Status CheckForeignMembers(const Json& config, std::string_view what) {
  const ModelFamily* family = FamilyOf(config);
  for (const ForeignMember& member : kForeign) {
    // The family's reader looks at its own members.
    if (family != nullptr && std::ranges::find(family->options, member.name) != family->options.end()) continue;
    const Json* value = JsonFind(config, member.name);
    if (value == nullptr || ChangesNothing(*value, member.neutral)) continue;
    return Fail(Code::kUnsupported,
                "{}: {} {} is not implemented for this model_type; if the model was trained without it, remove the "
                "member",
                what, member.name, DumpJson(*value));
  }
  return {};
}

std::vector<std::string> UnknownMembers(const Json& config) {
  const ModelFamily* family = FamilyOf(config);
  const auto parsed = ParseModelConfig(config, "config.json");
  if (!parsed) return {};
  const Json written = (*parsed)->ToJson();
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.items()) {
    const bool is_known = written.contains(key) || std::ranges::find(kCommon, key) != std::end(kCommon) ||
                          std::ranges::find(family->options, key) != family->options.end() ||
                          std::ranges::find(kForeign, key, &ForeignMember::name) != std::end(kForeign) ||
                          key.starts_with("summary_");  // the head of GPT2DoubleHeadsModel
    if (!is_known) unknown.push_back(key);
  }
  return unknown;
}

std::string UnknownMembersNote(const Json& config) {
  const std::vector<std::string> unknown = UnknownMembers(config);
  if (unknown.empty()) return "";
  return fmt::format("config.json has members that are kept, but not used: {}", fmt::join(unknown, ", "));
}

}  // namespace millrace::engine
