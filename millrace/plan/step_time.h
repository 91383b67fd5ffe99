// Predicts the time of a step.
#pragma once

#include <vector>

#include "millrace/plan/traffic.h"

namespace millrace::plan {

/// The parts of the time of a step, in seconds, on the slowest rank. They add up to total().
struct StepTime {
  double reference = 0;  ///< forward passes of the DPO reference over pairs of answers, with their exchanges
  double compute = 0;    ///< forward and backward passes of all micro-batches
  double tensor = 0;     ///< exchanges between tensor-parallel ranks, for which the passes wait
  double bubble = 0;     ///< waiting for other stages of the pipeline
  double messages = 0;   ///< messages between stages, without the time that passes hide
  double gradients = 0;  ///< sums of gradients and gathers of weights, without the time that passes hide
  double optimizer = 0;  ///< the update of the weights
  double total() const { return reference + compute + tensor + bubble + messages + gradients + optimizer; }
  /// Returns `bubble` as a share of the time of the forward and backward passes: compute + tensor + bubble.
  double bubble_share() const;
};

/// Predicts the time of a step of `setup` under a layout. `shares`: the part of the model on each rank of a pipeline.
StepTime TimeOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                const std::vector<RankShare>& shares, const Machine& machine);

}  // namespace millrace::plan
