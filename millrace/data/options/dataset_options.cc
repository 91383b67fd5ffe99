#include "millrace/data/options/dataset_options.h"

namespace millrace::data {

bool CountsTokens(const DatasetOptions& options) {
  if (options.objective == Objective::kDpo) return options.best_fit;
  if (options.objective != Objective::kCausalLm) return options.objective == Objective::kMlm;
  return options.mode == SequenceMode::kPack || options.best_fit || options.split_long;
}

}  // namespace millrace::data
