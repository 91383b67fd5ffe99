// Submits jobs to a scheduler (Slurm or Kubernetes), reads their state there, and stops them.
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

/// Submits a job to its scheduler. Returns the id that the scheduler gave the job. REQUIRES: `spec` has been checked.
/// Errors: kBusy if a job of this name waits or runs already; those of Scheduler::Submit().
Result<std::string> SubmitToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler);
/// Submits several jobs as one array of Slurm. At most `at_once` of them run at the same time. The name of each job is
/// `name`, a dash and the number of its element. Returns the array's id. Slurm calls element 3 of array 17 job 17_3.
/// Errors: kUnsupported if there is only one job, or if the jobs need different scripts for Slurm; kBusy as above.
Result<std::string> SubmitArrayToSlurm(const Context& context, const std::string& name,
                                       const std::vector<std::pair<int, jobs::Spec>>& elements, int at_once);
/// Calls SubmitToScheduler() and prints the id.
Result<int> SubmitAndPrintId(const Context& context, const jobs::Spec& spec, Scheduler& scheduler);

/// Like jobs::ReadJob() and jobs::ListJobs(). If a job was submitted to a scheduler, its status is what the scheduler
/// knows now: see Scheduler::Refresh().
Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name);
Result<std::vector<jobs::JobStatus>> ListJobsAnywhere();

/// Asks a job to save and leave, whatever started the job, and prevents a restart. Does not wait until the job has
/// ended. If the supervisor is just starting, waits up to 5 s for it. Errors: kPreconditionFailed if the job does not
/// run.
Status RequestStop(const Context& context, const std::string& name);

/// Deletes the folder of a job that has ended, and what its scheduler keeps of it.
/// Errors: kPreconditionFailed if it has not ended; those of Scheduler::Delete() and jobs::DeleteJob().
Status DeleteJobAnywhere(const std::string& name);

}  // namespace millrace::cli
