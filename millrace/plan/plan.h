// Predicts the resources and the time of a job before anything is spent.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/plan/memory.h"
#include "millrace/plan/step_time.h"
#include "millrace/plan/traffic.h"

namespace millrace::plan {

/// The prediction for one layout. Plain data.
struct Plan {
  Layout layout;
  std::vector<MemoryUse> memory;     ///< of each rank of the pipeline
  std::size_t fullest = 0;           ///< the rank of the pipeline that needs most memory
  std::vector<TrafficLine> traffic;  ///< of that rank
  StepTime time;
  double memory_limit = 0;  ///< bytes of a rank that may be used
  bool fits() const { return static_cast<double>(memory[fullest].total()) <= memory_limit; }
};

/// Errors: those of MakeLayout().
Result<Plan> MakePlan(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine& machine);

/// Returns the bytes of a rank's memory that a plan may use.
double MemoryLimit(const TrainingSetup& setup, const Machine& machine);

/// Returns the layout as the job file's train.parallel, without what has its default: "{tensor: 2, zero: 1}".
std::string LayoutYaml(const Layout& layout);
/// For people: tables of memory and communication, and the expected step.
std::string PlanText(const Plan& plan, const TrainingSetup& setup, const Machine& machine);
/// The same for programs. README.md lists the keys.
Json PlanJson(const Plan& plan, const TrainingSetup& setup, const Machine& machine);

}  // namespace millrace::plan
