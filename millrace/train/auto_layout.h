// Asks the planner about a run: for its layout, where the job file leaves that to the planner, and for its memory.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_shape.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/train/options.h"

namespace millrace::train {

/// Returns the layers of the model, with their marks of what the run trains. `lora`: the run's adapters.
plan::ModelShape TrainedShape(const Options& options, const engine::ModelConfig& config,
                              const std::optional<engine::LoraOptions>& lora);

/// Returns options.parallel or, with options.auto_memory_weight, what plan::ChooseLayout finds for the model. Rank 0
/// chooses for all ranks: their machines may differ in memory. Collective over `world`. Errors: kResourceExhausted if
/// no layout fits; kInvalidArgument on GPUs without options.machine; those of the machine's file; kUnavailable if a
/// rank is lost.
Result<engine::ParallelOptions> ChooseParallel(engine::Collective& world, const Options& options,
                                               const plan::ModelShape& model);

/// Returns the bytes that the fullest rank needs in this layout: the total that `millrace job plan` prints.
/// Errors: those of the machine's file.
Result<std::uint64_t> PlannedMemory(const Options& options, const plan::ModelShape& model,
                                    const engine::ParallelOptions& parallel, int ranks);

/// Returns the floating-point operations a second that the machine's description promises for all ranks. For GPUs that
/// it does not describe, returns the peak of their data sheet, or 0 if the peak is not known.
Result<double> PromisedRate(const Options& options, int ranks);

}  // namespace millrace::train
