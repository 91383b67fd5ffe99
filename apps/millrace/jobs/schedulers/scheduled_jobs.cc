#include "apps/millrace/jobs/schedulers/scheduled_jobs.h"

#include <utility>

#include "apps/common/output.h"
#include "millrace/base/clock.h"
#include "millrace/jobs/slurm/slurm.h"

namespace millrace::cli {
namespace {

Status Refresh(jobs::JobStatus& status) {
  const auto submission = MR_TRY(jobs::SubmissionOf(MR_TRY(jobs::StateRoot()), status.name));
  Scheduler* scheduler = submission ? SchedulerOf(submission->launcher) : nullptr;
  if (scheduler != nullptr) scheduler->Refresh(status, *submission);
  return {};
}

/// Returns whether a job was submitted as the allocation that this process is in.
Result<bool> IsThisAllocations(const std::string& name) {
  const std::string id = jobs::AllocationId();
  const auto submission = MR_TRY(jobs::SubmissionOf(MR_TRY(jobs::StateRoot()), name));
  return !id.empty() && submission && submission->id == id;
}

}  // namespace

Scheduler* SchedulerOf(std::string_view launcher) {
  if (launcher == "slurm") return &SlurmScheduler();
  if (launcher == "kubernetes" || launcher == "jobset" || launcher == "mpijob") return &KubernetesScheduler();
  return nullptr;
}

Result<int> SubmitToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const auto known = ReadJobAnywhere(spec.name);
  if (known && known->active()) {
    return Fail(Code::kBusy, "job \"{}\" is {} already; `millrace job stop {}` ends it", spec.name, known->state,
                spec.name);
  }
  const std::string now = FormatIso8601(SystemClock().Wall());
  jobs::JobStatus status{.name = spec.name,
                         .state = "queued",
                         .message = fmt::format("being submitted to {}", scheduler.title()),
                         .started = now,
                         .updated = now};
  if (known && known->state != "done") status.cost = known->cost;
  MR_TRY(jobs::PrepareSubmission(root, spec.name, spec.Render(), status));
  const auto id = scheduler.Submit(context, spec);
  const Result<jobs::Submission> submission =
      id ? Result<jobs::Submission>(jobs::Submission{.launcher = spec.run.launcher, .id = *id}) : Fail(id.error());
  MR_TRY(jobs::NoteSubmission(root, spec.name, submission));
  if (!id) return Fail(id.error());
  if (context.globals.json) {
    PrintJsonLine({{"event", "submitted"}, {"name", spec.name}, {"launcher", spec.run.launcher}, {"id", *id}});
  } else {
    Print("job {} is job {} of {}: `millrace job status {}`, `millrace job attach {}`\n", spec.name, *id,
          scheduler.title(), spec.name, spec.name);
  }
  return kExitOk;
}

Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name) {
  jobs::JobStatus status = MR_TRY(jobs::ReadJob(MR_TRY(jobs::StateRoot()), name));
  MR_TRY(Refresh(status));
  return status;
}

Result<std::vector<jobs::JobStatus>> ListJobsAnywhere() {
  std::vector<jobs::JobStatus> all = MR_TRY(jobs::ListJobs(MR_TRY(jobs::StateRoot())));
  for (jobs::JobStatus& status : all) (void)Refresh(status);  // one bad folder hides no other job
  return all;
}

Result<bool> MayStartAgain(const std::string& name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const auto submission = MR_TRY(jobs::SubmissionOf(root, name));
  return submission && !MR_TRY(jobs::IsStopRequested(root, name));
}

Result<bool> IsStoppedInSlurm(const std::string& name) {
  return MR_TRY(IsThisAllocations(name)) && MR_TRY(jobs::IsStopRequested(MR_TRY(jobs::StateRoot()), name));
}

Result<bool> RequeueIfInterrupted(const std::string& name) {
  if (!MR_TRY(IsThisAllocations(name)) || MR_TRY(IsStoppedInSlurm(name))) return false;
  const std::string id = jobs::AllocationId();
  // A job that was cancelled is not to come back.
  if (MR_TRY(jobs::FindSlurmJob(id)).state != "RUNNING") return false;
  MR_TRY(jobs::RequeueSlurmJob(id));
  return true;
}

}  // namespace millrace::cli
