// Starts the runs of a sweep, watches them, and stops unpromising runs early.
#pragma once

#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/sweep/sweep_plan.h"

namespace millrace::cli {

/// Brings the states, steps and metrics of a sweep's runs up to date. `log_urls`: log.url of each run in a cluster,
/// whose metrics are there; else empty texts. Returns the metric's reports of each run.
std::vector<std::vector<jobs::MetricReport>> RefreshSweep(const Context& context, jobs::SweepState& state,
                                                          const std::vector<std::string>& log_urls);
/// Returns `log_urls` of RefreshSweep().
std::vector<std::string> LogUrls(const SweepPlan& plan);

/// Asks the runs of a sweep that run to save and leave. Waits for none.
void StopRuns(const Context& context, jobs::SweepState& state);

/// Runs a sweep until all its runs have ended, `sweep stop` is called or context.stop fires; then runs in the
/// background go on. Returns the state at the end. REQUIRES: this process has the sweep's lock, and its state is
/// written.
Result<jobs::SweepState> DriveSweep(const Context& context, const SweepArguments& arguments, SweepPlan plan);

}  // namespace millrace::cli
