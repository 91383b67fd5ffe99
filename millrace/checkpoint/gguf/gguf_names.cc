#include "millrace/checkpoint/gguf/gguf_names.h"

#include <charconv>
#include <span>

namespace millrace::checkpoint {
namespace {

/// Names without ".weight" and ".bias"; {} stands for the number of the block.
struct NamePair {
  std::string_view gguf, hugging_face;
};

constexpr NamePair kLlamaNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
    // Qwen3's alone.
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
};
constexpr NamePair kGpt2Names[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
    {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"},
    {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj"},
    {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"},
};
constexpr std::string_view kNumber = "{}";

std::span<const NamePair> NamesOf(std::string_view architecture) {
  constexpr std::size_t kQwen3Norms = 2;
  if (architecture == kGgufQwen3) return kLlamaNames;
  if (architecture == kGgufLlama || architecture == kGgufQwen2) {
    return std::span(kLlamaNames).first(std::size(kLlamaNames) - kQwen3Norms);
  }
  if (architecture == kGgufGpt2) return kGpt2Names;
  return {};
}

/// Returns what stands for the number in `name`, if the rest is as in `pattern`; "" for patterns without a number.
std::optional<std::string_view> Match(std::string_view name, std::string_view pattern, std::int64_t blocks) {
  const std::size_t place = pattern.find(kNumber);
  if (place == pattern.npos) return name == pattern ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, place), behind = pattern.substr(place + kNumber.size());
  if (name.size() <= before.size() + behind.size() || !name.starts_with(before) || !name.ends_with(behind))
    return std::nullopt;
  const std::string_view digits = name.substr(before.size(), name.size() - before.size() - behind.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0 || number >= blocks ||
      digits != std::to_string(number))
    return std::nullopt;
  return digits;
}

std::optional<std::string> Translate(std::string_view architecture, std::string_view name, std::int64_t blocks,
                                     std::string_view NamePair::* from, std::string_view NamePair::* to) {
  const std::size_t dot = name.rfind('.');
  const std::string_view part = dot == name.npos ? "" : name.substr(dot);
  if (part != ".weight" && part != ".bias") return std::nullopt;
  for (const NamePair& pair : NamesOf(architecture)) {
    const auto digits = Match(name.substr(0, dot), pair.*from, blocks);
    if (!digits) continue;
    std::string translated(pair.*to);
    if (const std::size_t place = translated.find(kNumber); place != translated.npos)
      translated.replace(place, kNumber.size(), *digits);
    return translated.append(part);
  }
  return std::nullopt;
}

bool IsPartOf(std::string_view name, std::string_view layer) {
  return name.substr(0, name.rfind('.')).ends_with(layer);
}

}  // namespace

bool IsGgufArchitecture(std::string_view architecture) { return !NamesOf(architecture).empty(); }

std::optional<std::string> HuggingFaceNameOf(std::string_view architecture, std::string_view gguf_name,
                                             std::int64_t blocks) {
  return Translate(architecture, gguf_name, blocks, &NamePair::gguf, &NamePair::hugging_face);
}

std::optional<std::string> GgufNameOf(std::string_view architecture, std::string_view name, std::int64_t blocks) {
  return Translate(architecture, name, blocks, &NamePair::hugging_face, &NamePair::gguf);
}

bool HasTurnedRows(std::string_view architecture, std::string_view name) {
  return architecture == kGgufLlama && (IsPartOf(name, ".q_proj") || IsOfKeys(name));
}

bool IsOfKeys(std::string_view name) { return IsPartOf(name, ".k_proj"); }

bool IsStoredTransposed(std::string_view architecture, std::string_view name) {
  return architecture == kGgufGpt2 && name.ends_with(".weight") &&
         (IsPartOf(name, ".c_attn") || IsPartOf(name, ".c_proj") || IsPartOf(name, ".c_fc"));
}

}  // namespace millrace::checkpoint
