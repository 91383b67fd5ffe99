#include "apps/millrace/jobs/schedulers/scheduled_jobs.h"

#include <fmt/ranges.h>

#include <utility>

#include "apps/common/output.h"
#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launchers/slurm.h"

namespace millrace::cli {
namespace {

Status Refresh(jobs::JobStatus& status) {
  const auto submission = MR_TRY(jobs::SubmissionOf(MR_TRY(jobs::StateRoot()), status.name));
  Scheduler* scheduler = submission ? SchedulerOf(submission->launcher) : nullptr;
  if (scheduler == nullptr) return {};
  const Status refreshed = scheduler->Refresh(status, *submission);
  if (refreshed || !status.active()) return {};
  status.message = fmt::format("{} does not answer ({}); at {} it was {}: {}", scheduler->title(),
                               refreshed.error().ToString(), status.updated, status.state, status.message);
  status.state = "unknown";
  return {};
}

}  // namespace

Scheduler* SchedulerOf(std::string_view launcher) {
  if (launcher == "slurm") return &SlurmScheduler();
  if (launcher == "kubernetes" || launcher == "jobset" || launcher == "mpijob") return &KubernetesScheduler();
  return nullptr;
}

namespace {

/// Writes the job file and the status of a job that a scheduler is about to get.
Status Prepare(const std::filesystem::path& root, const jobs::Spec& spec, std::string_view title) {
  const auto known = ReadJobAnywhere(spec.name);
  if (known && known->active()) {
    return Fail(Code::kBusy, "job \"{}\" is {} already; `millrace job stop {}` ends it", spec.name, known->state,
                spec.name);
  }
  const jobs::JobStatus status = jobs::QueuedStatus(spec.name, title, SystemClock().Wall(), known ? &*known : nullptr);
  MR_TRY(jobs::PrepareSubmission(root, spec.name, spec.Render(), status));
  return {};
}

Status NoteId(const std::filesystem::path& root, const jobs::Spec& spec, const Result<std::string>& id) {
  const Result<jobs::Submission> submission =
      id ? Result<jobs::Submission>(jobs::Submission{.launcher = spec.run.launcher, .id = *id}) : Fail(id.error());
  return jobs::NoteSubmission(root, spec.name, submission);
}

}  // namespace

Result<std::string> SubmitToScheduler(const Context& context, const jobs::Spec& spec, Scheduler& scheduler) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  MR_TRY(Prepare(root, spec, scheduler.title()));
  auto id = scheduler.Submit(context, spec);
  MR_TRY(NoteId(root, spec, id));
  return id;
}

Result<std::string> SubmitArrayToSlurm(const Context& context, const std::string& name,
                                       const std::vector<std::pair<int, jobs::Spec>>& elements, int at_once) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const std::filesystem::path programs = MR_TRY(ProgramDirectory());
  std::vector<std::string> numbers;
  for (const auto& [number, spec] : elements) numbers.push_back(std::to_string(number));
  const std::filesystem::path folder = root / "jobs" / (name + "-%a");
  const auto render = [&](jobs::Spec spec) {
    spec.name = name;
    return jobs::RenderBatchScript(spec, {.millrace = (programs / "millrace").string(),
                                          .job_file = (folder / "job.yaml").string(),
                                          .output = (folder / "slurm-%A_%a.out").string(),
                                          .array = fmt::format("{}%{}", fmt::join(numbers, ","), at_once)});
  };
  if (elements.size() < 2) return Fail(Code::kUnsupported, "an array has several jobs");
  const std::string script = render(elements.front().second);
  for (const auto& [number, spec] : elements) {
    if (render(spec) != script) return Fail(Code::kUnsupported, "the jobs ask Slurm for different things");
  }
  for (const auto& [number, spec] : elements) MR_TRY(Prepare(root, spec, SlurmScheduler().title()));
  auto id = jobs::SubmitBatch(script, GlobalsEnvironment(context.globals));
  for (const auto& [number, spec] : elements) {
    MR_TRY(NoteId(root, spec, id ? Result<std::string>(fmt::format("{}_{}", *id, number)) : Fail(id.error())));
  }
  return id;
}

Result<int> SubmitAndPrintId(const Context& context, const jobs::Spec& spec, Scheduler& scheduler) {
  const std::string id = MR_TRY(SubmitToScheduler(context, spec, scheduler));
  if (context.globals.json) {
    PrintJsonLine({{"event", "submitted"}, {"name", spec.name}, {"launcher", spec.run.launcher}, {"id", id}});
  } else {
    Print("job {} is job {} of {}: `millrace job status {}`, `millrace job attach {}`\n", spec.name, id,
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

Status RequestStop(const Context& context, const std::string& name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  if (const auto submission = MR_TRY(jobs::SubmissionOf(root, name))) {
    Scheduler* scheduler = SchedulerOf(submission->launcher);
    if (scheduler == nullptr) {
      return Fail(Code::kCorrupt, "job \"{}\" was submitted to {}, which this version does not know", name,
                  submission->launcher);
    }
    return scheduler->Stop(name, *submission);
  }
  // A supervisor that has just taken the job's lock writes its process id soon afterwards.
  constexpr int kTries = 100;
  for (int tried = 1;; ++tried) {
    const Status asked = jobs::StopJob(root, name);
    if (asked) return {};
    if (asked.error().code() != Code::kUnavailable || tried == kTries) return Fail(asked.error());
    if (!SystemClock().SleepFor(std::chrono::milliseconds(50), context.stop)) {
      return Fail(Code::kCancelled, "job \"{}\" was not asked to stop", name);
    }
  }
}

Status DeleteJobAnywhere(const std::string& name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const jobs::JobStatus status = MR_TRY(ReadJobAnywhere(name));
  if (status.active()) {
    return Fail(Code::kPreconditionFailed, "job \"{}\" is {}; `millrace job stop {}` ends it first", name, status.state,
                name);
  }
  const auto submission = MR_TRY(jobs::SubmissionOf(root, name));
  if (Scheduler* scheduler = submission ? SchedulerOf(submission->launcher) : nullptr) {
    MR_TRY(scheduler->Delete(*submission));
  }
  return jobs::DeleteJob(root, name);
}

}  // namespace millrace::cli
