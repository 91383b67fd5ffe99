#include "millrace/engine/options/optimizer_options.h"

namespace millrace::engine {

std::string_view OptimizerName(const OptimizerOptions& options) {
  constexpr std::string_view kNames[] = {"adamw", "lamb", "sgd"};  // in the order of the variant
  return kNames[options.method.index()];
}

void ChooseOptimizer(std::string_view name, OptimizerOptions& options) {
  if (name == OptimizerName(options)) return;
  if (name == "adamw") options.method = AdamwOptions();
  if (name == "lamb") options.method = LambOptions();
  if (name == "sgd") options.method = SgdOptions();
}

}  // namespace millrace::engine
