#include "millrace/checkpoint/convert/huggingface/hf_folder.h"

#include <algorithm>

#include "millrace/engine/config/families.h"

namespace millrace::checkpoint {
namespace {

/// Suffixes of files of weights and of their indexes, of any framework.
constexpr std::string_view kWeights[] = {".safetensors", ".bin",  ".pt",  ".pth",        ".ckpt",   ".h5", ".msgpack",
                                         ".onnx",        ".gguf", ".npz", ".index.json", ".distcp", ".ot"};

bool EndsWithAny(std::string_view name, std::span<const std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

bool IsWeightsFile(std::string_view name) { return EndsWithAny(name, kWeights); }

bool IsModelFile(std::string_view name) {
  if (name.starts_with(kTemplateFolder)) {
    name.remove_prefix(kTemplateFolder.size());
    if (!name.ends_with(".jinja")) return false;
  }
  return !name.empty() && name[0] != '.' && name.find('/') == name.npos && !IsWeightsFile(name);
}

ModelNames::ModelNames(const Json& config, const std::vector<std::string>& names) {
  const engine::ModelFamily* family = engine::FamilyOf(config);
  if (family == nullptr) return;
  const engine::FolderNames& folder = family->names;
  computed_ = folder.computed;
  if (std::find(names.begin(), names.end(), folder.embedding) != names.end()) prefix_ = folder.prefix;
}

std::optional<std::string> ModelNames::operator()(const std::string& name) const {
  if (EndsWithAny(name, computed_)) return std::nullopt;
  return prefix_ + name;
}

bool IsTiedName(const Json& config, std::string_view name) {
  const engine::ModelFamily* family = engine::FamilyOf(config);
  if (family == nullptr) return false;
  const engine::FolderNames& folder = family->names;
  const Json* says = JsonFind(config, "tie_word_embeddings");
  const bool tied = says != nullptr && says->is_boolean() ? says->get<bool>() : folder.tied;
  return tied && std::find(folder.tied_names.begin(), folder.tied_names.end(), name) != folder.tied_names.end();
}

}  // namespace millrace::checkpoint
