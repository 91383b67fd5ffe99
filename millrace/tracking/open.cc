#include "millrace/tracking/open.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/environment.h"
#include "millrace/tracking/mlflow_tracker.h"
#include "millrace/tracking/wandb_tracker.h"

namespace millrace::tracking {
namespace {

/// Takes a tracker that was opened, or decides what its failure means.
template <class T>
Status Take(Result<std::unique_ptr<T>> opened, const TrackedRun& run, const Logger& log,
            std::vector<std::unique_ptr<Tracker>>& trackers) {
  if (opened) {
    trackers.push_back(*std::move(opened));
    return {};
  }
  if (run.resumed_from == 0) return Fail(opened.error());
  log.Warning("a tracker cannot be opened; the run goes on without it", {{"error", opened.error()}});
  return {};
}

}  // namespace

Environment EnvironmentOf(const TrackingOptions& options) {
  return [env = options.env](const char* name) -> std::optional<std::string> {
    if (const auto found = env.find(name); found != env.end()) return found->second;
    return EnvironmentVariable(name);
  };
}

Result<std::vector<std::unique_ptr<Tracker>>> OpenTrackers(const TrackingOptions& options, TrackedRun run, Clock& clock,
                                                           const Logger& log) {
  std::vector<std::unique_ptr<Tracker>> trackers;
  // The id goes into a filter of MLflow's and into names of files.
  std::erase_if(run.id, [](char c) {
    return !(c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
  });
  if (options.mlflow) {
    MR_TRY(Take(MlflowTracker::Open(*options.mlflow, options, run, EnvironmentOf(options), clock, log), run, log,
                trackers));
  }
  if (options.wandb) MR_TRY(Take(WandbTracker::Open(*options.wandb, options, run, log), run, log, trackers));
  return trackers;
}

}  // namespace millrace::tracking
