// Checks the constraints between the keys of a job file.
#pragma once

#include "millrace/base/config.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Checks a Spec that was read from the document with this root, and completes train.micro_batch. Messages name the
/// place in the document.
Status CheckSpec(const config::Node& root, Spec& spec, SpecPurpose purpose);

/// Completes `run.hosts`, `run.nodes` and `run.processes_per_node` of the launcher ssh. Reads run.hostfile.
/// Errors: those of the file; kInvalidArgument if the keys contradict each other.
Status CompleteHosts(const config::Node& node, RunSpec& run, SpecPurpose purpose);

/// Checks what was read from the node `run`. Messages name the place in the document.
Status CheckRun(const config::Node& node, const RunSpec& run, SpecPurpose purpose);

/// Checks that pods can be named after the job, if its ranks run in pods. `root` is the whole document.
Status CheckPodName(const config::Node& root, const Spec& spec);

/// Checks what was read from the node `cost`.
Status CheckCost(const config::Node& node, const CostSpec& cost);

}  // namespace millrace::jobs
