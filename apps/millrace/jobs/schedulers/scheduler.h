// The interface of schedulers, which start jobs on machines of their own: Slurm, Kubernetes. `millrace job` uses all of
// them in the same way.
#pragma once

#include <string>
#include <string_view>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Jobs of one scheduler. Thread-compatible. Calls block.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// "Slurm", for messages.
  virtual std::string_view title() const = 0;
  /// Returns what Submit() gives to the scheduler: a script, or objects.
  virtual Result<std::string> Render(const Context& context, const jobs::Spec& spec) = 0;
  /// Returns the job's id there. Errors: kInvalidArgument if the scheduler refuses the job.
  virtual Result<std::string> Submit(const Context& context, const jobs::Spec& spec) = 0;
  /// Changes a status to what is true now: "queued" with the reason, "lost", … Brings what the job has written since
  /// the last call into its folder, if the supervisor does not write there.
  /// Errors: the scheduler does not answer. Then the status is what was known last.
  virtual Status Refresh(jobs::JobStatus& status, const jobs::Submission& submission) = 0;
  /// Asks the job to save and leave, and keeps it from coming back. A job that waits is cancelled.
  /// Errors: kPreconditionFailed if it neither waits nor runs.
  virtual Status Stop(const std::string& name, const jobs::Submission& submission) = 0;
  /// Deletes what is left there of a job that has ended. Its absence is no error.
  virtual Status Delete(const jobs::Submission& submission) = 0;
};

/// Returns the scheduler of a `run.launcher`; nullptr if the launcher starts ranks itself. Lives for the whole process.
Scheduler* SchedulerOf(std::string_view launcher);

Scheduler& SlurmScheduler();
Scheduler& KubernetesScheduler();

}  // namespace millrace::cli
