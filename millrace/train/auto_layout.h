// The layout of a run whose job file leaves it to the planner.
#pragma once

#include "millrace/base/result.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/models/model_config.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/train/options.h"

namespace millrace::train {

/// Returns options.parallel or, with options.auto_layout, what plan::ChooseLayout finds for the model. Rank 0 chooses
/// for all ranks: their machines may differ in memory. Collective over `world`.
/// Errors: kResourceExhausted if no layout fits; those of the machine's file; kUnavailable if a rank is lost.
Result<engine::ParallelOptions> ChooseParallel(engine::Collective& world, const Options& options,
                                               const engine::ModelConfig& config);

}  // namespace millrace::train
