#include "apps/millrace/jobs/scheduled_jobs.h"

#include <utility>

#include "apps/common/output.h"
#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/jobs/slurm/slurm.h"

namespace millrace::cli {
namespace {

Result<jobs::BatchOptions> OptionsOf(const jobs::Spec& spec) {
  const std::filesystem::path folder = MR_TRY(jobs::StateRoot()) / "jobs" / spec.name;
  return jobs::BatchOptions{.millrace = (MR_TRY(ProgramDirectory()) / "millrace").string(),
                            .job_file = (folder / "job.yaml").string(),
                            .output = (folder / "slurm-%j.out").string()};
}

/// Changes the state of a job in Slurm to what is true now.
void Refresh(jobs::JobStatus& status, const std::string& id) {
  const auto found = jobs::FindSlurmJob(id);
  if (!found) return;
  if (found->waits()) {
    status.state = "queued";
    status.message = fmt::format("Slurm job {} waits{}", id, found->reason.empty() ? "" : ": " + found->reason);
    status.ranks.clear();
  } else if (found->runs() && (status.state == "queued" || !status.active())) {
    status.state = "starting";
    status.message = fmt::format("Slurm job {} has {}", id, found->nodes);
    status.ranks.clear();
  } else if (found->leaves() && (status.active() || status.state == "interrupted")) {
    status.state = "stopping";  // it may yet go back to the queue
  } else if (!found->runs() && !found->leaves() && status.active()) {
    status.state = "lost";
    status.message = fmt::format("Slurm job {} is gone{}; its last words: {}", id,
                                 found->state.empty() ? "" : " (" + found->state + ")", status.message);
  }
}

}  // namespace

Result<std::string> SlurmScript(const jobs::Spec& spec) {
  return jobs::RenderBatchScript(spec, MR_TRY(OptionsOf(spec)));
}

Result<int> SubmitToSlurm(const Context& context, const jobs::Spec& spec) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  if (const auto known = ReadJobAnywhere(spec.name); known && known->active()) {
    return Fail(Code::kBusy, "job \"{}\" is {} already; `millrace job stop {}` ends it", spec.name, known->state,
                spec.name);
  }
  const std::string now = FormatIso8601(SystemClock().Wall());
  const jobs::JobStatus status{
      .name = spec.name, .state = "queued", .message = "being submitted to Slurm", .started = now, .updated = now};
  MR_TRY(jobs::PrepareSubmission(root, spec.name, spec.Render(), status));
  const auto id = jobs::SubmitBatch(MR_TRY(SlurmScript(spec)), GlobalsEnvironment(context.globals));
  MR_TRY(jobs::NoteSubmission(root, spec.name, id));
  if (!id) return Fail(id.error());
  if (context.globals.json) {
    PrintJsonLine({{"event", "submitted"}, {"name", spec.name}, {"launcher", "slurm"}, {"id", *id}});
  } else {
    Print("job {} is job {} of Slurm: `millrace job status {}`, `millrace job attach {}`\n", spec.name, *id, spec.name,
          spec.name);
  }
  return kExitOk;
}

Result<jobs::JobStatus> ReadJobAnywhere(std::string_view name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  jobs::JobStatus status = MR_TRY(jobs::ReadJob(root, name));
  const std::string id = MR_TRY(jobs::SlurmIdOf(root, name));
  if (!id.empty()) Refresh(status, id);
  return status;
}

Result<std::vector<jobs::JobStatus>> ListJobsAnywhere() {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  std::vector<jobs::JobStatus> all = MR_TRY(jobs::ListJobs(root));
  for (jobs::JobStatus& status : all) {
    const auto id = jobs::SlurmIdOf(root, status.name);
    if (id && !id->empty()) Refresh(status, *id);
  }
  return all;
}

Result<bool> MayStartAgain(const std::string& name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const std::string id = MR_TRY(jobs::SlurmIdOf(root, name));
  return !id.empty() && !MR_TRY(jobs::IsStopRequested(root, name));
}

Status StopInSlurm(const std::string& name, const std::string& id) {
  const jobs::SlurmJob job = MR_TRY(jobs::FindSlurmJob(id));
  if (!job.waits() && !job.runs()) {
    return Fail(Code::kPreconditionFailed, "job \"{}\" does not run: Slurm job {} is {}", name, id,
                job.state.empty() ? "gone" : job.state);
  }
  MR_TRY(jobs::RequestStop(MR_TRY(jobs::StateRoot()), name));
  return job.waits() ? jobs::CancelSlurmJob(id) : jobs::TerminateBatch(id);
}

Result<bool> RequeueIfInterrupted(const std::string& name) {
  const std::string id = jobs::AllocationId();
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  if (id.empty() || MR_TRY(jobs::SlurmIdOf(root, name)) != id || MR_TRY(jobs::IsStopRequested(root, name))) {
    return false;
  }
  // A job that was cancelled is not to come back.
  if (MR_TRY(jobs::FindSlurmJob(id)).state != "RUNNING") return false;
  MR_TRY(jobs::RequeueSlurmJob(id));
  return true;
}

}  // namespace millrace::cli
