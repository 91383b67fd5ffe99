// How long a step is expected to take.
#pragma once

#include <vector>

#include "millrace/plan/traffic.h"

namespace millrace::plan {

/// Parts of a step's time, in seconds, on the rank that takes longest. They add up to total().
struct StepTime {
  double reference = 0;  ///< forward passes of the reference over pairs of answers, with their exchanges
  double compute = 0;    ///< forward and backward passes of all micro-batches
  double tensor = 0;     ///< exchanges between tensor-parallel ranks, for which passes wait
  double bubble = 0;     ///< waiting for other stages
  double messages = 0;   ///< between stages, as far as they are not hidden
  double gradients = 0;  ///< sums of gradients and gathers of weights, as far as they are not hidden
  double optimizer = 0;
  double total() const { return reference + compute + tensor + bubble + messages + gradients + optimizer; }
  /// Returns the share of the learning passes' time in which a rank waits for other stages.
  double bubble_share() const;
};

StepTime TimeOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                const std::vector<RankShare>& shares, const Machine& machine);

}  // namespace millrace::plan
