#include "millrace/engine/config/lora_options.h"

#include <cmath>

namespace millrace::engine {

double LoraOptions::scale() const { return alpha / (rslora ? std::sqrt(rank) : rank); }

bool IsOfAdapter(std::string_view parameter) {
  return parameter.ends_with(kLoraDown) || parameter.ends_with(kLoraUp) || parameter.ends_with(kLoraMagnitude);
}

bool TargetMatches(std::string_view target, std::string_view module) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

Status CheckLora(const LoraOptions& options, std::string_view key) {
  if (options.rank < 1) return Fail(Code::kInvalidArgument, "{}.r is {}; it must be at least 1", key, options.rank);
  if (!(options.alpha > 0))
    return Fail(Code::kInvalidArgument, "{}.alpha is {}; it must be positive", key, options.alpha);
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return Fail(Code::kInvalidArgument, "{}.dropout is {}; it must be in [0, 1)", key, options.dropout);
  }
  if (options.targets.empty()) {
    return Fail(Code::kInvalidArgument, "{}.targets is empty; name modules, or all-linear", key);
  }
  for (const std::string& target : options.targets) {
    if (target.empty()) {
      return Fail(Code::kInvalidArgument, "{}.targets has an empty name; remove it, or name a module such as q_proj",
                  key);
    }
  }
  return {};
}

}  // namespace millrace::engine
