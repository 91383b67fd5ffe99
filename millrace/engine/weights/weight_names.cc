#include "millrace/engine/weights/weight_names.h"

#include <string_view>

#include "millrace/engine/adapters/peft_config.h"

namespace millrace::engine {

std::optional<std::string> FindAdapterWeight(const checkpoint::Manifest& manifest, const std::string& name) {
  for (const std::string_view group : {checkpoint::kAdapterGroup, checkpoint::kModelGroup}) {
    std::string full = std::string(group) + std::string(kPeftPrefix) + name;
    if (manifest.tensors.contains(full)) return full;
  }
  return std::nullopt;
}

}  // namespace millrace::engine
