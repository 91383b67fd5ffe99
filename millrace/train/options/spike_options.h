// The action of a run about steps whose loss jumps. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::train {

struct SpikeOptions {
  enum class Action {
    kNone,
    kSkipStep,  ///< the step changes no weight (as OLMo's SkipStepOptimizer)
    kRollBack,  ///< the run goes back to its newest checkpoint, and on with the samples behind these (as PaLM did)
  };
  Action action = Action::kNone;
  double sigma = 6;            ///< the standard deviations above the mean that make a spike
  std::uint32_t window = 128;  ///< the steps before it, of which the mean is
  bool operator==(const SpikeOptions&) const = default;
};
/// "none", "skip_step", "roll_back"
std::string_view SpikeActionName(SpikeOptions::Action action);
std::optional<SpikeOptions::Action> ParseSpikeAction(std::string_view name);

}  // namespace millrace::train
