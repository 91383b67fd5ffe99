#include "millrace/engine/weights/weight_names.h"

#include <string_view>

#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/config/whole_weights.h"

namespace millrace::engine {

std::optional<std::string> FindModelWeight(const checkpoint::Manifest& manifest, const std::string& name) {
  const std::size_t dot = name.find('.');
  std::string old_name = name;  // of norms, in files of the first BERTs
  if (const std::size_t at = name.rfind(".LayerNorm."); at != name.npos) {
    old_name = name.substr(0, at) + (name.ends_with("weight") ? ".LayerNorm.gamma" : ".LayerNorm.beta");
  }
  for (const std::string& candidate : {name, name.substr(dot == name.npos ? 0 : dot + 1), old_name}) {
    std::string full = std::string(checkpoint::kModelGroup) + candidate;
    if (manifest.tensors.contains(full)) return full;
  }
  return std::nullopt;
}

std::optional<std::string> FindAdapterWeight(const checkpoint::Manifest& manifest, const std::string& name) {
  for (const std::string_view group : {checkpoint::kAdapterGroup, checkpoint::kModelGroup}) {
    std::string full = std::string(group) + std::string(kPeftPrefix) + name;
    if (manifest.tensors.contains(full)) return full;
  }
  return std::nullopt;
}

std::vector<std::string> AdapterTensors(const checkpoint::Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [tensor, meta] : manifest.tensors) {
    for (const std::string_view group : {checkpoint::kAdapterGroup, checkpoint::kModelGroup}) {
      if (!tensor.starts_with(group)) continue;
      std::string_view name = std::string_view(tensor).substr(group.size());
      if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
      names.emplace_back(name);
    }
  }
  return names;
}

Status FindWhole(const checkpoint::Reader& adapter, const ModelConfig& config, LoraOptions& options) {
  options.whole = MR_TRY(FindWholeWeights(AdapterTensors(adapter.manifest()), config, options, adapter.name()));
  return {};
}

}  // namespace millrace::engine
