// Derives from a job file the facts that the planner needs.
#pragma once

#include "millrace/jobs/spec/spec.h"
#include "millrace/plan/layout.h"

namespace millrace::jobs {

/// Returns what a job trains, and on how many ranks. The model is left out: it may lie in the store, or depend on the
/// tokenizer.
plan::TrainingSetup TrainingSetupOf(const Spec& spec);

/// Returns how many GPUs the ranks of a machine must have: one each with train.device cuda, else 0.
int WantedGpus(const Spec& spec);

}  // namespace millrace::jobs
