// Jobs that a scheduler starts: they are submitted here, and the scheduler knows of them what their files do not say.
#pragma once

#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/schedulers/scheduler.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Submits a job to its scheduler and prints its id. `spec` has been checked. Errors: kBusy if the job is there
/// already.
Result<int> SubmitToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler);

/// As jobs::ReadJob() and jobs::ListJobs(), with what the jobs' schedulers know.
Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name);
Result<std::vector<jobs::JobStatus>> ListJobsAnywhere();

/// Returns whether a scheduler may start a job again that was interrupted: `job stop` was not asked to end it.
Result<bool> MayStartAgain(const std::string& name);
/// Returns whether `job stop` was asked to end this job of Slurm. Its signal may have come before this process could
/// take it, or before there was this process.
Result<bool> IsStoppedInSlurm(const std::string& name);
/// Puts this job back into Slurm's queue, if it was interrupted by Slurm rather than by `job stop`. Returns whether it
/// did.
Result<bool> RequeueIfInterrupted(const std::string& name);

}  // namespace millrace::cli
