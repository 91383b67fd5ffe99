// Jobs that a scheduler starts: they are submitted here, and Slurm knows of them what their files do not say.
#pragma once

#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Submits a job to Slurm and prints its id. `spec` has been checked. Errors: kBusy if the job is there already.
Result<int> SubmitToSlurm(const Context& context, const jobs::Spec& spec);
/// Returns the script that SubmitToSlurm() would submit.
Result<std::string> SlurmScript(const jobs::Spec& spec);

/// As jobs::ReadJob() and jobs::ListJobs(), with the states that Slurm knows: "queued", "lost". Where Slurm does not
/// answer, what the supervisor wrote last.
Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name);
Result<std::vector<jobs::JobStatus>> ListJobsAnywhere();

/// Returns whether Slurm may start a job again that was interrupted: `job stop` was not asked to end it.
Result<bool> MayStartAgain(const std::string& name);
/// Asks a job in Slurm to save and leave; a job that waits is cancelled. REQUIRES: jobs::SlurmIdOf() has an id.
Status StopInSlurm(const std::string& name, const std::string& id);
/// Puts this job back into the queue, if it was interrupted by Slurm rather than by `job stop`. Returns whether it did.
Result<bool> RequeueIfInterrupted(const std::string& name);

}  // namespace millrace::cli
