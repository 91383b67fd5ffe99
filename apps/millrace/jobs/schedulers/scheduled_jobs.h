// Jobs that a scheduler starts: they are submitted here, and the scheduler knows of them what their files do not say.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/schedulers/scheduler.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {

/// Submits a job to its scheduler and returns its id there. `spec` has been checked. Errors: kBusy if the job is there
/// already.
Result<std::string> GiveToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler);
/// Submits several jobs as one array of Slurm, of which at most `at_once` run at the same time. The name of each is
/// `name`, a dash and its element's number. Returns the array's id; element 3 of array 17 is job 17_3.
/// Errors: kUnsupported if Slurm's script would not be the same for all, or there is only one; kBusy as above.
Result<std::string> GiveArrayToSlurm(const Context& context, const std::string& name,
                                     const std::vector<std::pair<int, jobs::Spec>>& elements, int at_once);
/// Calls GiveToScheduler() and prints the id.
Result<int> SubmitToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler);

/// As jobs::ReadJob() and jobs::ListJobs(), with what the jobs' schedulers know.
Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name);
Result<std::vector<jobs::JobStatus>> ListJobsAnywhere();

/// Asks a job to save and leave, whatever started it, and keeps it from coming back. Does not wait for it; waits some
/// seconds for a supervisor that is just starting. Errors: kPreconditionFailed if it does not run.
Status AskToStop(const Context& context, const std::string& name);

/// Returns whether a scheduler may start a job again that was interrupted: `job stop` was not asked to end it.
Result<bool> MayStartAgain(const std::string& name);
/// Returns whether `job stop` was asked to end this job of Slurm. Its signal may have come before this process could
/// take it, or before there was this process.
Result<bool> IsStoppedInSlurm(const std::string& name);
/// Puts this job back into Slurm's queue, if it was interrupted by Slurm rather than by `job stop`. Returns whether it
/// did.
Result<bool> RequeueIfInterrupted(const std::string& name);

}  // namespace millrace::cli
