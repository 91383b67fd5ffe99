// The run of a job with a program of the user's own in trackers of experiments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"
#include "millrace/tracking/tracker.h"

namespace millrace::cli {

/// Reports the metrics of log.metric_definitions to log.wandb and log.mlflow. One thread at a time. Runs of a job that
/// has not come to its end are one run in trackers, whose id is in the job's folder.
class JobTrackers {
 public:
  /// Returns null if the job names no tracker, or if it runs millrace-train, which reports by itself.
  /// `goes_on`: an earlier run of the job did not come to its end. Blocks until the trackers have the run.
  /// Errors: those of tracking::OpenTrackers; of reading and writing the id.
  static Result<std::unique_ptr<JobTrackers>> Open(const Context& context, const jobs::Spec& spec,
                                                   const std::filesystem::path& folder, bool goes_on);

  /// Never blocks.
  void Add(const std::string& name, std::uint64_t step, double value);
  /// Tells how the job ended. Blocks for half a minute at most. Call it once.
  void End(const jobs::JobStatus& status);

 private:
  explicit JobTrackers(std::vector<std::unique_ptr<tracking::Tracker>> trackers) : trackers_(std::move(trackers)) {}
  const std::vector<std::unique_ptr<tracking::Tracker>> trackers_;
};

}  // namespace millrace::cli
