// The numbers of machines that an elastic job may go on with, and the job file that these machines get. With launcher
// local, ranks take the place of machines: each has an agent of its own.
#pragma once

#include <vector>

#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// Returns the numbers of nodes (with launcher local: of ranks) that an attempt may have, the best one first. Without
/// `run.elastic`, only run.nodes.
/// With it, all between its limits at which the global batch, and whatever else the layout divides, divides.
std::vector<int> NodeCounts(const Spec& spec);

/// Returns the same job on another number of nodes (with launcher local: of ranks). The global batch, and so the
/// samples of each step, are the same. Errors: kInvalidArgument if the work does not divide among their ranks.
Result<Spec> OnNodes(const Spec& spec, int nodes);

}  // namespace millrace::jobs
