#include <string>

#include "apps/millrace/jobs/schedulers/scheduler.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launchers/slurm.h"

namespace millrace::cli {
namespace {

class Slurm final : public Scheduler {
 public:
  std::string_view title() const override { return "Slurm"; }

  Result<std::string> Render(const Context&, const jobs::Spec& spec) override {
    const std::filesystem::path folder = MR_TRY(jobs::StateRoot()) / "jobs" / spec.name;
    const std::filesystem::path programs = MR_TRY(ProgramDirectory());
    return jobs::RenderBatchScript(spec, {.millrace = (programs / "millrace").string(),
                                          .job_file = (folder / "job.yaml").string(),
                                          .output = (folder / "slurm-%j.out").string()});
  }

  Result<std::string> Submit(const Context& context, const jobs::Spec& spec) override {
    const std::string script = MR_TRY(Render(context, spec));
    return jobs::SubmitBatch(script, GlobalsEnvironment(context.globals));
  }

  Status Refresh(jobs::JobStatus& status, const jobs::Submission& submission) override {
    const jobs::SlurmJob found = MR_TRY(jobs::FindSlurmJob(submission.id));
    const bool is_stopped = MR_TRY(jobs::IsStopRequested(MR_TRY(jobs::StateRoot()), status.name));
    jobs::ApplySlurmState(status, found, is_stopped);
    return {};
  }

  Status Stop(const std::string& name, const jobs::Submission& submission) override {
    const std::string& id = submission.id;
    const jobs::SlurmJob job = MR_TRY(jobs::FindSlurmJob(id));
    if (!job.waits() && !job.runs()) {
      return Fail(Code::kPreconditionFailed,
                  "job \"{}\" does not run: Slurm job {} is {}; `millrace job submit` starts the job again", name, id,
                  job.state.empty() ? "gone" : job.state);
    }
    MR_TRY(jobs::NoteStopRequest(MR_TRY(jobs::StateRoot()), name));
    return job.waits() ? jobs::CancelSlurmJob(id) : jobs::TerminateBatch(id);
  }

  /// Slurm forgets jobs by itself.
  Status Delete(const jobs::Submission&) override { return {}; }
};

}  // namespace

Scheduler& SlurmScheduler() {
  static Slurm slurm;
  return slurm;
}

}  // namespace millrace::cli
