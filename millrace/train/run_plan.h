// The plan of a run, which it tells before its first step.
#pragma once

#include <cstdint>

#include "millrace/base/result.h"
#include "millrace/data/dataset.h"
#include "millrace/data/loader.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_shape.h"
#include "millrace/engine/options/schedule.h"
#include "millrace/train/layout.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// The parts that a plan is made of.
struct PlannedRun {
  const Options& options;
  const RankLayout& layout;
  const data::Dataset& dataset;
  const data::Loader& loader;
  const engine::ModelConfig& config;
  const plan::ModelShape& shape;
  std::uint64_t steps_done = 0;
};

/// Returns the plan. Only that of rank 0 has an estimate of memory: its machine has the file that describes the
/// machines. Errors: those of PlannedMemory().
Result<Plan> PlanRun(const PlannedRun& run);

/// Returns the schedule of the learning rate over `steps` steps.
engine::Schedule ScheduleFor(const Options& options, std::uint64_t steps);

}  // namespace millrace::train
