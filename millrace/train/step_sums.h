// The sums over all ranks behind the passes of a step.
#pragma once

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/train/checkpointing.h"
#include "millrace/train/step_runner.h"

namespace millrace::train {

/// The sums of a step: of one rank, or over all ranks, where a flag says that one of them has it.
struct StepSums {
  PassSums passes;
  bool stop = false;  ///< the run was asked to end behind this step
  SaversBusy busy;
  bool lost = false;  ///< Checkpointing::lost()
};

/// Returns the sums over all ranks. `compares`: the sums have preferences, on all ranks. One all-reduce of about a
/// dozen numbers. Collective. Errors: kUnavailable if a rank is lost.
Result<StepSums> SumOverRanks(engine::Collective& group, const StepSums& mine, bool compares);

}  // namespace millrace::train
