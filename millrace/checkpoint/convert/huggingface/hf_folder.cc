#include "millrace/checkpoint/convert/huggingface/hf_folder.h"

#include <algorithm>
#include <array>

namespace millrace::checkpoint {
namespace {

/// Suffixes of files of weights and of their indexes, of any framework.
constexpr std::string_view kWeights[] = {".safetensors", ".bin",  ".pt",  ".pth",        ".ckpt",   ".h5", ".msgpack",
                                         ".onnx",        ".gguf", ".npz", ".index.json", ".distcp", ".ot"};
/// A model type of transformers.
struct Family {
  std::string_view model_type;
  std::string_view prefix;     ///< of the base model's tensors in the class with a language-model head
  std::string_view embedding;  ///< a tensor of the base model, without the prefix
  bool tied;                   ///< the default of tie_word_embeddings
  std::array<std::string_view, 2> tied_names;
  std::array<std::string_view, 3> computed;  ///< suffixes of computed tensors, which are not parameters
};
constexpr Family kFamilies[] = {
    {"llama", "model.", "embed_tokens.weight", false, {"lm_head.weight"}, {".rotary_emb.inv_freq"}},
    {"mistral", "model.", "embed_tokens.weight", false, {"lm_head.weight"}, {".rotary_emb.inv_freq"}},
    {"qwen2", "model.", "embed_tokens.weight", false, {"lm_head.weight"}, {".rotary_emb.inv_freq"}},
    {"qwen3", "model.", "embed_tokens.weight", false, {"lm_head.weight"}, {".rotary_emb.inv_freq"}},
    {"gpt2",
     "transformer.",
     "wte.weight",
     true,
     {"lm_head.weight"},
     {".attn.bias", ".attn.masked_bias", ".crossattention.bias"}},
    {"gptj",
     "transformer.",
     "wte.weight",
     false,
     {"lm_head.weight"},
     {".attn.bias", ".attn.masked_bias", ".attn.embed_positions"}},
    {"bert",
     "bert.",
     "embeddings.word_embeddings.weight",
     true,
     {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
     {"embeddings.position_ids", "embeddings.token_type_ids"}},
};

const Family* FamilyOf(const Json& config) {
  const Json* type = JsonFind(config, "model_type");
  for (const Family& family : kFamilies)
    if (type != nullptr && type->is_string() && type->get_ref<const std::string&>() == family.model_type)
      return &family;
  return nullptr;
}

bool EndsWithAny(std::string_view name, std::span<const std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

bool IsWeightsFile(std::string_view name) { return EndsWithAny(name, kWeights); }

bool IsModelFile(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find('/') == name.npos && !IsWeightsFile(name);
}

ModelNames::ModelNames(const Json& config, const std::vector<std::string>& names) {
  const Family* family = FamilyOf(config);
  if (family == nullptr) return;
  for (std::string_view end : family->computed)
    if (!end.empty()) computed_.push_back(end);
  if (std::find(names.begin(), names.end(), family->embedding) != names.end()) prefix_ = family->prefix;
}

std::optional<std::string> ModelNames::operator()(const std::string& name) const {
  if (EndsWithAny(name, computed_)) return std::nullopt;
  return prefix_ + name;
}

bool IsTiedName(const Json& config, std::string_view name) {
  const Family* family = FamilyOf(config);
  if (family == nullptr || name.empty()) return false;
  const Json* says = JsonFind(config, "tie_word_embeddings");
  const bool tied = says != nullptr && says->is_boolean() ? says->get<bool>() : family->tied;
  return tied && std::find(family->tied_names.begin(), family->tied_names.end(), name) != family->tied_names.end();
}

}  // namespace millrace::checkpoint
