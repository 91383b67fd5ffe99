// Opens the trackers of a run.
#pragma once

#include <memory>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/tracking/options.h"
#include "millrace/tracking/tracker.h"

namespace millrace::tracking {

/// Returns the trackers that `options` ask for. Blocks until each has the run.
/// A run that resumes goes on without a tracker that cannot be opened, and the log says so: nobody watches a run that
/// starts again in the night. Any other run fails with the error, before its first step.
/// REQUIRES: `clock` outlives the trackers. Errors: those of WandbTracker::Open and MlflowTracker::Open.
Result<std::vector<std::unique_ptr<Tracker>>> OpenTrackers(const TrackingOptions& options, TrackedRun run, Clock& clock,
                                                           const Logger& log);

/// Returns the variables of `options.env`, and behind them those of this process.
Environment EnvironmentOf(const TrackingOptions& options);

}  // namespace millrace::tracking
