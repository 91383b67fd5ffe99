#include "apps/millrace/jobs/run_job.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/jobs/background_jobs.h"
#include "apps/millrace/jobs/bucket_jobs.h"
#include "apps/millrace/jobs/hub_revisions.h"
#include "apps/millrace/jobs/job_checks.h"
#include "apps/millrace/jobs/job_source.h"
#include "apps/millrace/jobs/run_reporter.h"
#include "apps/millrace/jobs/schedulers/remote_launch.h"
#include "apps/millrace/jobs/webhook.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/checkpoint/save/ownership.h"
#include "millrace/jobs/health/spot_watch.h"
#include "millrace/jobs/kubernetes/cluster_job.h"
#include "millrace/jobs/launchers/local_launcher.h"
#include "millrace/jobs/launchers/slurm.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/state.h"
#include "millrace/jobs/supervisor.h"
#include "millrace/metrics/endpoint.h"

namespace millrace::cli {
namespace {

Result<std::vector<std::string>> RankCommand(const JobArguments& arguments, const std::filesystem::path& job_file) {
  const std::string program =
      arguments.program.empty() ? (MR_TRY(ProgramDirectory()) / "millrace-train").string() : arguments.program;
  std::vector<std::string> command{program, job_file.string()};
  if (arguments.compiles) command.emplace_back("--compile-only");
  return command;
}

using Stream = jobs::LocalLauncher::Stream;

/// Prints a line of rank 0: standard output unchanged, standard error with the prefix "[rank 0]".
void HandOn(Stream stream, std::string_view line) {
  if (stream == Stream::kError) {
    PrintError("[rank 0] {}\n", line);
    return;
  }
  Print("{}\n", line);
  FlushOutput();
}

/// The supervisor's log file, next to the ranks' logs. It exists because nobody may read the supervisor's output.
class SupervisorLog {
 public:
  explicit SupervisorLog(UniqueFd file) : file_(std::move(file)) {}
  void Write(std::string_view sentence) const {
    const std::string line = fmt::format("{} {}\n", FormatIso8601(SystemClock().Wall()), sentence);
    // A full disk must not end the training.
    [[maybe_unused]] const ssize_t written = ::write(file_.get(), line.data(), line.size());
  }
  /// Reports a failure of standard output once, in the log and on standard error.
  void NoteLostOutput(const std::string& name) {
    if (OutputFailure() == 0 || std::exchange(lost_, true)) return;
    const std::string sentence = fmt::format(
        "standard output is gone ({}); the job goes on: `millrace job logs {} --follow`, `millrace job stop {}`",
        std::generic_category().message(OutputFailure()), name, name);
    Write(sentence);
    PrintError("millrace: job {}: {}\n", name, sentence);
  }

 private:
  const UniqueFd file_;
  bool lost_ = false;
};

/// The output of a supervisor in a pod, in the form of jobs::CollectLog(): `millrace job` elsewhere reads the pod's
/// log. One owner.
class SupervisorOutput {
 public:
  void Write(const std::string& line);
  void Print(const jobs::JobEvent& event);
  /// Prints changes at once, and the number of steps from time to time.
  void Print(const jobs::JobStatus& status);

 private:
  std::string state_, message_;  ///< printed last
  TimePoint next_;
};

void SupervisorOutput::Write(const std::string& line) {
  cli::Print("{}\n", line);
  FlushOutput();
}

void SupervisorOutput::Print(const jobs::JobEvent& event) {
  for (const std::string_view line : Split(event.sentence, '\n')) Write(fmt::format("[supervisor] {}", line));
}

void SupervisorOutput::Print(const jobs::JobStatus& status) {
  constexpr Duration kInterval = std::chrono::seconds(2);
  const TimePoint now = SystemClock().Now();
  if (status.state == state_ && status.message == message_ && now < next_) return;
  state_ = status.state;
  message_ = status.message;
  next_ = now + kInterval;
  Write(jobs::StatusLine(status));
}

void PrintEvent(const Context& context, const std::string& name, const jobs::JobEvent& event) {
  if (context.globals.json) PrintJsonLine(event.object);
  if (context.globals.quiet && event.level == jobs::JobEvent::Level::kInfo) return;
  PrintError("millrace: job {}: {}\n", name, event.sentence);
}

using OnLine = std::function<void(int rank, Stream, std::string_view)>;

Result<std::unique_ptr<jobs::Launcher>> LaunchHere(const Context& context, const jobs::Spec& spec,
                                                   const JobArguments& arguments, const jobs::JobFolder& folder,
                                                   OnLine on_line) {
  jobs::LocalLauncher::Options local;
  local.command = MR_TRY(RankCommand(arguments, folder.path() / "job.yaml"));
  local.foreign = jobs::ForeignProgramOf(spec);
  local.env = RankEnvironment(context, spec);
  local.env.insert(arguments.env.begin(), arguments.env.end());
  local.env.merge(MissingComputeEnvironment(DetectCpu()));
  local.env["MILLRACE_HISTORY_FILE"] = HistoryFileIn(folder.path());
  local.ranks = spec.run.processes_per_node;
  if (arguments.place) local.place = *arguments.place;
  local.threads = spec.train.threads;
  local.folder = folder.path();
  local.on_line = std::move(on_line);
  return std::make_unique<jobs::LocalLauncher>(std::move(local));
}

/// Returns what shows the metrics of the job file in TensorBoard; null if it defines none, or names no folder.
Result<std::unique_ptr<jobs::MetricEvents>> OpenMetricEvents(const Context& context, const jobs::Spec& spec) {
  if (spec.log.metric_definitions.empty() || spec.log.tensorboard.empty()) return nullptr;
  return jobs::MetricEvents::Open(MR_TRY(context.Connect()), spec.log.tensorboard, spec.name, SystemClock(),
                                  context.log());
}

/// All that shows or records what a job does: the terminal or the pod's log, the supervisor's log file, the job's
/// folders here and in a bucket, the webhook, the trackers. The supervisor's thread calls it.
class JobAudience {
 public:
  /// REQUIRES: all references, and the webhook unless it is null, outlive this object.
  JobAudience(const Context& context, const jobs::Spec& spec, const JobArguments& arguments,
              const jobs::JobFolder& folder, SupervisorLog& words, Webhook* webhook)
      : context_(context),
        spec_(spec),
        arguments_(arguments),
        folder_(folder),
        words_(words),
        webhook_(webhook),
        log_(context.log()) {}

  /// Writes that the job starts, and opens its folder in the bucket.
  Status WriteFirstStatus() {
    const jobs::JobStatus status = jobs::StartingStatus(spec_.name, SystemClock().Wall());
    MR_TRY(folder_.Write(status));
    keeper_ = MR_TRY(KeepRunFolder(context_, spec_, folder_, status, [this](const Error& error) {
      const std::string sentence =
          fmt::format("{} cannot be written, the job goes on without: {}", spec_.log.url, error.ToString());
      words_.Write(sentence);
      if (!arguments_.detached) PrintError("millrace: job {}: {}\n", spec_.name, sentence);
    }));
    return {};
  }

  /// Opens the receivers of metrics and the report. `goes_on`: an earlier run of the job did not come to its end.
  Status OpenReporter(bool goes_on) {
    RunReporter::MetricTargets targets;
    targets.events = MR_TRY(OpenMetricEvents(context_, spec_));
    targets.trackers = MR_TRY(JobTrackers::Open(context_, spec_, folder_.path(), goes_on));
    reporter_.emplace(folder_.path(), spec_.log.metric_definitions, SystemClock(), log_, std::move(targets),
                      [this](const jobs::JobEvent& event) { Announce(event); });
    return {};
  }

  void HearLine(int rank, Stream stream, std::string_view line) {
    if (rank == 0 && keeper_ && stream == Stream::kOut) {
      if (auto event = jobs::EventOfLine(line)) {
        (*event)["time"] = FormatIso8601(SystemClock().Wall());
        keeper_->NoteEvent(*event);
      }
    }
    if (rank == 0 && reporter_) reporter_->NoteLine(line);
    if (arguments_.in_pod) return pod_log_.Write(jobs::RankLine(rank, stream == Stream::kError, line));
    if (rank != 0 || arguments_.detached) return;
    HandOn(stream, line);
    words_.NoteLostOutput(spec_.name);
  }

  void HearEvent(const jobs::JobEvent& event) {
    reporter_->NoteEvent(event);
    Announce(event);
  }

  void HearStatus(const jobs::JobStatus& status) {
    if (arguments_.in_pod) pod_log_.Print(status);
    reporter_->NoteStatus(status);
    if (keeper_) keeper_->NoteStatus(status, spec_.run.launcher);
    if (!status.active()) {
      // Who reads that the job has ended finds its last report, in the bucket too. Afterwards Slurm may end this
      // process.
      reporter_.reset();
      keeper_.reset();
    }
    // A full disk must not end the training.
    if (auto written = folder_.Write(status); !written) {
      log_.Warning("cannot write the status", {{"error", written.error()}});
    }
  }

 private:
  /// Tells everybody but the report.
  void Announce(const jobs::JobEvent& event) {
    if (webhook_) webhook_->PostEvent(event);
    words_.Write(event.sentence);
    if (keeper_) keeper_->NoteEvent(event.object);
    if (arguments_.in_pod) return pod_log_.Print(event);
    if (!arguments_.detached) PrintEvent(context_, spec_.name, event);
  }

  const Context& context_;
  const jobs::Spec& spec_;
  const JobArguments& arguments_;
  const jobs::JobFolder& folder_;
  SupervisorLog& words_;
  Webhook* const webhook_;  ///< null: none
  Logger log_;
  std::unique_ptr<RunFolderKeeper> keeper_;  ///< null: the job has no folder in a bucket, or has ended
  SupervisorOutput pod_log_;
  std::optional<RunReporter> reporter_;  ///< until the job has ended
};

/// Serves the metrics of the job file to Prometheus if the job runs a program of the user's own, which does not. Null:
/// it does not, or is not asked to.
Result<std::unique_ptr<http::Server>> ServeForeignMetrics(const Context& context, const jobs::Spec& spec,
                                                          const jobs::JobFolder& folder) {
  if (spec.run.command.empty() || spec.log.metrics_listen.empty()) return nullptr;
  return metrics::ServeMetrics(
      {.listen = spec.log.metrics_listen,
       .access = {.key_file = spec.log.metrics_key_file, .insecure = spec.log.metrics_insecure},
       .how = "log.metrics_key_file, or log.metrics_insecure: true",
       .log = context.log()},
      {{"/metrics", [path = folder.path()] { return MetricsIn(path).PrometheusText(); }}});
}

/// Returns the command that continues the job, as it was typed: "`millrace train job.yaml`".
std::string CommandAgain(const JobArguments& arguments) {
  std::string command = fmt::format("millrace {} {}", arguments.detached ? "job submit" : "train", arguments.file);
  for (const std::string& assignment : arguments.assignments) command += fmt::format(" --set '{}'", assignment);
  return "`" + command + "`";
}

/// Names the page with the run's curves, for a user who watched it.
void NameReport(const Context& context, const JobArguments& arguments, const jobs::JobFolder& folder,
                const std::string& name) {
  if (context.globals.quiet || context.globals.json || arguments.detached || arguments.in_pod) return;
  const std::string report = ReportFileIn(folder.path());
  std::error_code error;
  if (std::filesystem::exists(report, error)) PrintError("millrace: job {}: its report is {}\n", name, report);
}

/// Returns the launcher that the job asks for.
Result<std::unique_ptr<jobs::Launcher>> Launch(const Context& context, const jobs::Spec& spec,
                                               const JobArguments& arguments, const jobs::JobFolder& folder,
                                               OnLine on_line) {
  const bool in_parts = spec.run.launcher == "local" && spec.run.elastic;
  if (spec.run.is_over_ssh() || spec.run.launcher == "slurm" || arguments.in_pod || in_parts) {
    return LaunchRemotely(context, spec, arguments.program, folder, std::move(on_line));
  }
  return LaunchHere(context, spec, arguments, folder, std::move(on_line));
}

/// Errors: kInvalidArgument if another program starts the jobs of this launcher.
Status CheckStartsHere(const jobs::Spec& spec, const JobArguments& arguments) {
  if (spec.run.in_pods() && !arguments.in_pod) {
    return Fail(Code::kInvalidArgument, "run.launcher is {}: `millrace job submit {}` starts the job in its cluster",
                spec.run.launcher, arguments.file);
  }
  if (spec.run.launcher == "sagemaker" && !arguments.place) {
    return Fail(Code::kInvalidArgument,
                "run.launcher is sagemaker: in a container of SageMaker, `millrace sagemaker train` starts the job");
  }
  return {};
}

}  // namespace

Result<jobs::Spec> ReadSpec(const JobArguments& arguments, jobs::SpecPurpose purpose) {
  std::string text = MR_TRY(ReadFile(arguments.file, jobs::Spec::kMaxFile));
  jobs::Spec spec = MR_TRY(jobs::Spec::Parse(text, arguments.file, arguments.assignments, purpose));
  if (arguments.compiles && !spec.run.command.empty()) {
    return Fail(Code::kInvalidArgument, "{}: job compile is for Millrace's own training, not for run.command",
                arguments.file);
  }
  return spec;
}

Result<int> ShowChecks(const Context& context, const jobs::Spec& spec, const JobArguments& arguments) {
  const auto command = MR_TRY(RankCommand(arguments, {}));
  const JobChecks checks = CheckJob(context, spec, command.front(), /*starts=*/false);
  for (const Finding& finding : checks.findings) PrintFinding(context, finding);
  return checks.failure ? kExitFailed : kExitOk;
}

Status CheckBeforeStart(const Context& context, const jobs::Spec& spec, const JobArguments& arguments) {
  const auto command = MR_TRY(RankCommand(arguments, {}));
  const JobChecks checks = CheckJob(context, spec, command.front(), /*starts=*/true);
  std::string failures;
  for (const Finding& finding : checks.findings) {
    if (finding.level == Finding::Level::kOk) continue;
    const std::string advice = finding.advice.empty() ? "" : fmt::format("\n    -> {}", finding.advice);
    const std::string text = fmt::format("{}: {}{}", finding.check, finding.what, advice);
    if (finding.level == Finding::Level::kFail) {
      failures += fmt::format("\n  {}", text);
    } else {
      PrintError("millrace: job {}: {}\n", spec.name, text);
    }
  }
  if (!checks.failure) return {};
  return Fail(*checks.failure, "job {} cannot run, no rank was started:{}", spec.name, failures);
}

Status TakeOverIfAsked(const Context& context, const jobs::Spec& spec, const JobArguments& arguments) {
  if (!arguments.takes_over) return {};
  if (spec.checkpoint.url.empty() || !spec.run.command.empty()) {
    return Fail(Code::kInvalidArgument, "--take-over ends the run that saves to checkpoint.url, and job {} {}",
                spec.name, spec.run.command.empty() ? "has none; set it" : "runs a program of its own; stop that");
  }
  const auto connection = MR_TRY(context.Connect());
  const auto ended =
      MR_TRY(checkpoint::Ownership::EndOwner(MR_TRY(object::Locate(*connection, spec.checkpoint.url)),
                                             checkpoint::LocalProvenance("millrace", MILLRACE_VERSION), SystemClock()));
  if (ended && !context.globals.quiet) {
    PrintError("millrace: job {}: takes {} over from {}; that run ends soon\n", spec.name, spec.checkpoint.url,
               ended->Who());
  }
  return {};
}

Result<int> RunJob(const Context& context, const JobArguments& arguments) {
  jobs::Spec spec = MR_TRY(ReadSpec(arguments));
  if (arguments.compiles) spec = spec.CompileJob();
  if (context.globals.dry_run) return ShowChecks(context, spec, arguments);
  MR_TRY(CheckStartsHere(spec, arguments));
  if (spec.run.launcher == "mpijob") MR_TRY(jobs::NameMpiHosts(spec.run));
  if (!arguments.no_check) MR_TRY(CheckBeforeStart(context, spec, arguments));
  MR_TRY(PinHubRevisions(context, spec));
  MR_TRY(PackJobSource(context, spec));
  const std::unique_ptr<Webhook> webhook =
      MR_TRY(Webhook::Open(spec, context.globals.connect.ca_bundle, context.log()));
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const jobs::UnfinishedJob earlier = jobs::FindUnfinished(root, spec.name);
  const auto folder = MR_TRY(jobs::JobFolder::Claim(root, spec.name));
  MR_TRY(TakeOverIfAsked(context, spec, arguments));
  MR_TRY(WriteFileAtomic(folder.path() / "job.yaml", AsBytes(spec.Render())));

  SupervisorLog words(MR_TRY(OpenFile(folder.logs() / "supervisor.log", O_WRONLY | O_CREAT | O_APPEND)));
  ::signal(SIGHUP, SIG_IGN);  // the job outlives the terminal that it was started from
  JobAudience audience(context, spec, arguments, folder, words, webhook.get());
  MR_TRY(audience.WriteFirstStatus());
  if (arguments.detached) MR_TRY(LeaveTerminal(folder.logs() / "supervisor.log"));

  const std::unique_ptr<jobs::Launcher> launcher =
      MR_TRY(Launch(context, spec, arguments, folder,
                    [&](int rank, Stream stream, std::string_view line) { audience.HearLine(rank, stream, line); }));
  MR_TRY(audience.OpenReporter(earlier.exists));
  const std::unique_ptr<http::Server> metrics_server = MR_TRY(ServeForeignMetrics(context, spec, folder));
  auto options = jobs::Supervisor::OptionsOf(spec, /*in_sagemaker=*/arguments.place.has_value());
  options.policy.command = CommandAgain(arguments);
  options.spent_before = earlier.spent;
  std::optional<jobs::SpotWatch> spot;  // agents watch the machines of other launchers
  if (spec.run.spot && spec.run.launcher == "local") {
    spot.emplace(jobs::SpotWatch::DefaultEndpoint());
    options.leave_reason = [&spot] { return spot->TerminationNotice().value_or(jobs::Finding{}).what; };
  }
  options.on_event = [&](const jobs::JobEvent& event) { audience.HearEvent(event); };
  options.on_status = [&](const jobs::JobStatus& status) { audience.HearStatus(status); };
  jobs::Supervisor supervisor(*launcher, SystemClock(), Random(SystemEntropy()), std::move(options));
  const bool in_slurm = spec.run.launcher == "slurm";
  std::stop_source stopped;
  if (in_slurm && MR_TRY(jobs::IsStoppedInSlurm(root, spec.name))) stopped.request_stop();
  const jobs::JobOutcome outcome = supervisor.Run(stopped.stop_requested() ? stopped.get_token() : context.stop);
  NameReport(context, arguments, folder, spec.name);
  if (in_slurm && outcome.goes_on()) {
    const auto requeued = jobs::RequeueIfInterrupted(root, spec.name);
    if (!requeued) return Fail(requeued.error());
    if (*requeued) words.Write("back in Slurm's queue; the job goes on from its last checkpoint");
  }
  return outcome.exit_status;
}

}  // namespace millrace::cli
