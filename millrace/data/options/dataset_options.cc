#include "millrace/data/options/dataset_options.h"

#include <algorithm>
#include <array>

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, 4> kObjectives = {"causal_lm", "mlm", "classification", "dpo"};

}  // namespace

bool CountsTokens(const DatasetOptions& options) {
  if (options.objective == Objective::kDpo) return options.best_fit;
  if (options.objective != Objective::kCausalLm) return options.objective == Objective::kMlm;
  return options.mode != SequenceMode::kPad || options.best_fit || options.split_long;
}

std::string_view ObjectiveName(Objective objective) { return kObjectives[static_cast<std::size_t>(objective)]; }

std::optional<Objective> ParseObjective(std::string_view name) {
  const auto* at = std::ranges::find(kObjectives, name);
  if (at == kObjectives.end()) return std::nullopt;
  return static_cast<Objective>(at - kObjectives.begin());
}

}  // namespace millrace::data
