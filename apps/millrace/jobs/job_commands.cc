// millrace job …, millrace train, millrace serve.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "apps/common/flag_checks.h"
#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/agent_command.h"
#include "apps/millrace/jobs/background_jobs.h"
#include "apps/millrace/jobs/bucket_jobs.h"
#include "apps/millrace/jobs/compile_command.h"
#include "apps/millrace/jobs/hub_revisions.h"
#include "apps/millrace/jobs/job_source.h"
#include "apps/millrace/jobs/plan_command.h"
#include "apps/millrace/jobs/run_job.h"
#include "apps/millrace/jobs/run_reporter.h"
#include "apps/millrace/jobs/schedulers/scheduled_jobs.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/jobs/cost.h"
#include "millrace/jobs/kubernetes/manifests.h"
#include "millrace/jobs/launchers/local_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/spec/spec_schema.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {
namespace {

/// Arguments of `job compile`.
struct CompileArguments {
  std::shared_ptr<JobArguments> job = std::make_shared<JobArguments>();
  std::string cache;
  bool list = false, prune = false;
  int largest_micro_batch = 0;  ///< the most to look for; 0: do not look
  std::string older_than = "90d", scale_lr = "none";
};

/// Arguments of the commands that take a job's name.
struct NameArguments {
  std::string name;
  int rank = 0, tail = 0;  ///< the last lines to print; 0: all
  bool errors = false, follow = false, no_wait = false;
};

std::string StepText(const std::optional<std::uint64_t>& step) { return step ? FormatCount(*step) : "-"; }

void PrintStatus(const jobs::JobStatus& status, const std::vector<history::RankFigures>& figures) {
  Print("{}: {}, step {}, attempt {}, {} restarts\n  {}\n  supervisor: process {}, since {}, seen {}\n", status.name,
        status.state, StepText(status.step), status.attempt, status.restarts, status.message, status.pid,
        status.started, status.updated);
  for (std::size_t i = 0; i < status.ranks.size(); ++i) {
    const auto& rank = status.ranks[i];
    const std::string node = rank.node.empty() ? "" : " on " + rank.node;
    const std::string slow =
        i < figures.size() && figures[i].straggles
            ? fmt::format("; slower than its peers: {:.1f} times their time of a step", figures[i].slowness)
            : "";
    Print("  rank {}: {}, step {}, process {}{}{}\n", i, rank.state, StepText(rank.step), rank.pid, node, slow);
  }
  for (const auto& node : status.nodes) {
    if (node.state == "runs") continue;
    Print("  node {}: {}{}\n", node.name, node.state, node.reason.empty() ? "" : fmt::format(" ({})", node.reason));
  }
  if (status.cost) Print("  cost: {}\n", jobs::FormatCost(status.cost->spent, status.cost->currency));
}

int PrintJobs(const Context& context, const std::vector<jobs::JobStatus>& all) {
  if (!context.globals.json && !all.empty()) {
    PrintListing("{:<24} {:<12} {:>10} {:>8}  {}\n", "NAME", "STATE", "STEP", "RESTARTS", "UPDATED");
  }
  for (const jobs::JobStatus& status : all) {
    if (context.globals.json) {
      PrintJsonListing(status.ToJson());
    } else {
      PrintListing("{:<24} {:<12} {:>10} {:>8}  {}\n", status.name, status.state, StepText(status.step),
                   status.restarts, status.updated);
    }
  }
  return kExitOk;
}

Result<int> ListAllJobs(const Context& context, const NameArguments& arguments) {
  if (!arguments.name.empty()) return PrintJobs(context, MR_TRY(ListRunFolders(context, arguments.name)));
  return PrintJobs(context, MR_TRY(ListJobsAnywhere()));
}

/// Shows the named job; without a name, all jobs. One job is shown in full, several as one line each.
Result<int> ShowStatus(const Context& context, const NameArguments& arguments) {
  const auto root = MR_TRY(jobs::StateRoot());
  std::vector<jobs::JobStatus> shown;
  if (IsRunFolder(arguments.name)) {
    RunFolderReader reader = MR_TRY(RunFolderReader::Open(context, arguments.name));
    shown.push_back(MR_TRY(reader.Status({.stop = context.stop})));
  } else if (arguments.name.empty()) {
    shown = MR_TRY(ListJobsAnywhere());
    if (shown.empty()) PrintError("millrace: no job has been run on this machine by this user ({})\n", root.string());
  } else {
    shown.push_back(MR_TRY(ReadJobAnywhere(arguments.name)));
  }
  if (context.globals.json || shown.size() != 1) return PrintJobs(context, shown);
  PrintStatus(shown.front(), HistoryIn(root / "jobs" / shown.front().name).ranks());
  return kExitOk;
}

std::string LogName(const NameArguments& arguments) {
  return fmt::format("rank-{}.{}", arguments.rank, arguments.errors ? "err" : "out");
}

Result<int> ShowLogs(const Context& context, const NameArguments& arguments) {
  if (IsRunFolder(arguments.name)) {
    MR_TRY(PrintRunLog(context, arguments.name, LogName(arguments), arguments.follow));
    return kExitOk;
  }
  auto root = MR_TRY(jobs::StateRoot());
  auto status = MR_TRY(ReadJobAnywhere(arguments.name));
  auto path = root / "jobs" / status.name / "logs" / LogName(arguments);
  while (!std::filesystem::exists(path)) {
    // A job that waits for machines has no log yet.
    const bool may_come = arguments.follow && status.active();
    if (!may_come || !SystemClock().SleepFor(std::chrono::milliseconds(500), context.stop)) {
      return Fail(Code::kNotFound, "job \"{}\" has no log of rank {}: {}; `millrace job status` names the ranks",
                  status.name, arguments.rank, path.string());
    }
    status = MR_TRY(ReadJobAnywhere(arguments.name));
  }
  jobs::LogFollower log(path);
  auto print = [](std::string_view line) { Print("{}\n", line); };
  if (arguments.tail > 0 && !log.SkipToTail(arguments.tail)) return Fail(Code::kIo, "cannot read {}", path.string());
  while (arguments.follow && status.active() && !context.stop.stop_requested()) {
    if (!log.Poll(print)) break;
    FlushOutput();
    SystemClock().SleepFor(std::chrono::milliseconds(200), context.stop);
    status = MR_TRY(ReadJobAnywhere(arguments.name));
  }
  if (!log.Drain(print)) return Fail(Code::kIo, "cannot read {}; check the path and its rights", path.string());
  return kExitOk;
}

/// Says how a job has ended. Returns the exit status of its supervisor.
int TellEnd(const jobs::JobStatus& status) {
  PrintError("millrace: job {}: {}\n", status.name, status.message);
  if (status.state == "done") return kExitOk;
  return status.active() || status.state == "interrupted" ? ToExitStatus(Code::kCancelled) : kExitFailed;
}

/// Follows a job as if it ran here. Its exit status is the job's: of a supervisor, 0, 1 or 130.
Result<int> AttachToJob(const Context& context, NameArguments arguments) {
  arguments.follow = true;
  if (IsRunFolder(arguments.name)) {
    return TellEnd(MR_TRY(PrintRunLog(context, arguments.name, LogName(arguments), /*follow=*/true)));
  }
  // Slurm starts an interrupted job again, but says so only some seconds later.
  constexpr int kLooks = 20;
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  bool shown = false;
  for (int looks = 0;;) {
    const jobs::JobStatus status = MR_TRY(ReadJobAnywhere(arguments.name));
    const bool may_return = status.state == "interrupted" && MR_TRY(jobs::MayRestart(root, arguments.name));
    if (status.state == "queued" || status.state == "starting" || (may_return && ++looks < kLooks)) {
      if (!SystemClock().SleepFor(std::chrono::milliseconds(500), context.stop)) {
        return Fail(Code::kCancelled, "job \"{}\" is still {}", status.name, status.state);
      }
      continue;
    }
    if (status.active()) {
      MR_TRY(ShowLogs(context, arguments));
      shown = true;
      if (!context.stop.stop_requested()) continue;
    } else if (!shown) {
      MR_TRY(ShowLogs(context, arguments));
    }
    return TellEnd(status);
  }
}

/// Waits until a job has ended and tells how.
Result<int> AwaitEnd(const Context& context, const std::string& name) {
  for (;;) {
    const jobs::JobStatus status = MR_TRY(ReadJobAnywhere(name));
    if (!status.active()) {
      PrintError("millrace: job {}: {}\n", status.name, status.message);
      return kExitOk;
    }
    if (!SystemClock().SleepFor(std::chrono::milliseconds(100), context.stop)) {
      return Fail(Code::kCancelled, "job \"{}\" is still {}", status.name, status.state);
    }
  }
}

Result<int> StopOneJob(const Context& context, const NameArguments& arguments) {
  MR_TRY(RefuseDryRun(context, "job stop"));
  if (IsRunFolder(arguments.name)) {
    return Fail(Code::kInvalidArgument, "{} is a folder: `job stop` takes the job's name, where it was started",
                arguments.name);
  }
  MR_TRY(RequestStop(context, arguments.name));
  return arguments.no_wait ? kExitOk : MR_TRY(AwaitEnd(context, arguments.name));
}

Result<int> DeleteOneJob(const Context& context, const NameArguments& arguments) {
  MR_TRY(RefuseDryRun(context, "job delete"));
  if (IsRunFolder(arguments.name)) {
    return Fail(Code::kInvalidArgument, "{} is a folder: `job delete` takes the job's name, where it was started",
                arguments.name);
  }
  MR_TRY(DeleteJobAnywhere(arguments.name));
  return kExitOk;
}

/// Runs a program with libtorch in place of this process: millrace-serve or millrace-eval. Flags before the command's
/// word become its environment.
int RunProgram(const Context& context, const std::string& command) {
  auto environment = GlobalsEnvironment(context.globals);
  environment.merge(MissingComputeEnvironment(DetectCpu()));
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  auto word = std::find(context.arguments.begin(), context.arguments.end(), command);
  const Error failed =
      ExecSibling("millrace-" + command, {word + (word != context.arguments.end()), context.arguments.end()});
  if (failed.code() != Code::kNotFound) return ReportError(context, failed);
  return ReportError(context, {Code::kNotFound,
                               fmt::format("millrace-{} is not beside millrace: it is in the package millrace-engine, "
                                           "and in the bundle of a release whose name ends in -engine.tar.gz",
                                           command)});
}

/// Returns an action for AddCommand that calls a function and reports its error.
template <class Function, class... Bound>
std::function<int()> Act(Context& context, Function function, const Bound&... bound) {
  return [&context, function, bound...]() -> int {
    Result<int> status = function(context, *bound...);
    return status ? *status : ReportError(context, status.error());
  };
}

void AddJobFileArguments(CLI::App& command, const std::shared_ptr<JobArguments>& arguments) {
  command.add_option("JOB.yaml", arguments->file, "The job file")->required();
  command
      .add_option("--set", arguments->assignments, "key.path=value: replaces the value in the job file (repeatable)")
      ->allow_extra_args(false);
}

/// Adds what all commands have that start ranks.
void AddStartArguments(CLI::App& command, const std::shared_ptr<JobArguments>& arguments) {
  AddJobFileArguments(command, arguments);
  command.add_flag("--no-check", arguments->no_check,
                   "Start the ranks without checking data, tokenizer, buckets and rights first");
  command.add_flag("--take-over", arguments->takes_over, "End a run that saves to the same checkpoint.url");
  command.add_option("--program", arguments->program, "The program of a rank, instead of millrace-train")->group("");
}

void AddRunCommand(CLI::App& parent, Context& context, std::string name, std::string description,
                   std::string examples) {
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* command = AddCommand(parent, context, std::move(name), std::move(description), std::move(examples),
                                 Act(context, RunJob, arguments));
  AddStartArguments(*command, arguments);
  command->add_flag("--detached", arguments->detached, "For `job submit`: leave the terminal once started")->group("");
}

void AddRender(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<JobArguments>();
  auto launcher = std::make_shared<std::string>();
  auto render = [launcher](const Context& with, JobArguments given) -> Result<int> {
    if (!launcher->empty()) given.assignments.push_back("run.launcher=" + *launcher);
    jobs::Spec spec = MR_TRY(ReadSpec(given));
    if (!launcher->empty()) MR_TRY(PackJobSource(with, spec, /*only_names=*/true));
    Print("{}", launcher->empty() ? spec.Render() : MR_TRY(SchedulerOf(*launcher)->Render(with, spec)));
    return kExitOk;
  };
  CLI::App* command = AddCommand(job, context, "render", "Print a job file with every default filled in",
                                 "  millrace job render job.yaml\n"
                                 "  millrace job render job.yaml --set train.steps=10\n"
                                 "  millrace job render job.yaml --launcher slurm\n"
                                 "  millrace job render job.yaml --launcher kubernetes --set run.image=IMAGE",
                                 Act(context, render, arguments));
  AddJobFileArguments(*command, arguments);
  command
      ->add_option("--launcher", *launcher, "Print the script or the objects that `job submit` gives to this launcher")
      ->check(OneOf({"slurm", "kubernetes", "jobset", "mpijob"}));
}

/// Checks a job and gives it to the scheduler that its file names.
Result<int> SubmitJob(const Context& context, const JobArguments& arguments) {
  jobs::Spec spec = MR_TRY(ReadSpec(arguments));
  if (context.globals.dry_run) return ShowChecks(context, spec, arguments);
  if (!arguments.no_check) MR_TRY(CheckBeforeStart(context, spec, arguments));
  MR_TRY(PinHubRevisions(context, spec));
  MR_TRY(PackJobSource(context, spec));
  MR_TRY(TakeOverIfAsked(context, spec, arguments));
  if (Scheduler* scheduler = SchedulerOf(spec.run.launcher)) return SubmitAndPrintId(context, spec, *scheduler);
  return SubmitHere(context, spec, arguments.program);
}

void AddSubmit(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* command = AddCommand(job, context, "submit",
                                 "Start a job in the background, or give it to the scheduler that its file names",
                                 "  millrace job submit job.yaml\n"
                                 "  millrace job submit job.yaml --set run.launcher=slurm --set run.nodes=4",
                                 Act(context, SubmitJob, arguments));
  AddStartArguments(*command, arguments);
}

void AddPlan(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<JobArguments>();
  auto plan = [](const Context& with, const JobArguments& given) -> Result<int> {
    jobs::Spec spec = MR_TRY(ReadSpec(given, jobs::SpecPurpose::kPlan));
    if (!given.machine.empty()) spec.run.machine = given.machine;
    return PlanJob(with, spec);
  };
  CLI::App* command = AddCommand(
      job, context, "plan",
      "Print what a job needs of memory and communication and how long a step takes, before anything is spent",
      "  millrace job plan job.yaml\n"
      "  millrace job plan job.yaml --set train.parallel=auto --machine p5.48xlarge\n"
      "  millrace job plan job.yaml --machine p4d.24xlarge --set run.nodes=4 --set run.processes_per_node=8\n"
      "  millrace --json job plan job.yaml --set 'train.parallel={tensor: 2, zero: 1}'",
      Act(context, plan, arguments));
  AddJobFileArguments(*command, arguments);
  command->add_option("--machine", arguments->machine,
                      fmt::format("A machine description: a file, or one of {} (default: run.machine, or this machine)",
                                  fmt::join(PlanMachines(), ", ")));
}

/// Finds the largest micro-batch that fits: the planner's, tried on this machine; if it fails, halves of it.
Result<int> TryLargestBatch(const Context& context, const CompileArguments& arguments) {
  const jobs::Spec spec = MR_TRY(ReadSpec(*arguments.job));
  int most = arguments.largest_micro_batch;
  for (;;) {
    const LargestBatch batch = MR_TRY(FindLargestBatch(context, spec, most));
    JobArguments trial = *arguments.job;
    trial.assignments.push_back(fmt::format("train.micro_batch={}", batch.micro_batch));
    trial.assignments.push_back(fmt::format("train.global_batch={}", batch.global_batch));
    const int status = MR_TRY(RunJob(context, trial));
    if (status != kExitOk && (batch.micro_batch == 1 || context.stop.stop_requested())) return status;
    if (status != kExitOk) {
      most = batch.micro_batch / 2;
      PrintError("millrace: a micro-batch of {} failed; trying at most {}\n", batch.micro_batch, most);
      continue;
    }
    const double ratio = static_cast<double>(batch.global_batch) / spec.train.global_batch;
    const double factor = arguments.scale_lr == "linear" ? ratio : arguments.scale_lr == "sqrt" ? std::sqrt(ratio) : 1;
    const double lr = spec.train.schedule.lr * factor;
    if (context.globals.json) {
      PrintJsonLine({{"event", "largest_micro_batch"},
                     {"micro_batch", batch.micro_batch},
                     {"global_batch", batch.global_batch},
                     {"lr", lr},
                     {"planned_bytes", batch.bytes},
                     {"memory_limit_bytes", batch.limit}});
    } else {
      Print("the largest micro-batch that fits: {} (planned {} of {} a rank)\n", batch.micro_batch,
            FormatBytes(static_cast<std::uint64_t>(batch.bytes)), FormatBytes(static_cast<std::uint64_t>(batch.limit)));
      Print("  train: {{micro_batch: {}, global_batch: {}, optimizer: {{lr: {:g}}}}}\n", batch.micro_batch,
            batch.global_batch, lr);
    }
    return kExitOk;
  }
}

Result<int> CompileJob(const Context& context, const CompileArguments& arguments) {
  if (!arguments.list && !arguments.prune) {
    if (arguments.job->file.empty()) {
      return Fail(Code::kInvalidArgument, "job compile takes a job file, or --list or --prune");
    }
    if (!arguments.cache.empty()) arguments.job->assignments.push_back("train.compile_cache=" + arguments.cache);
    arguments.job->compiles = true;
    return arguments.largest_micro_batch > 0 ? TryLargestBatch(context, arguments) : RunJob(context, *arguments.job);
  }
  std::string cache = arguments.cache;
  if (cache.empty() && !arguments.job->file.empty()) {
    cache = MR_TRY(ReadSpec(*arguments.job, jobs::SpecPurpose::kPlan)).train.compile_cache;
  }
  if (arguments.list) return ListCompiled(context, cache);
  return PruneCompiled(context, cache, MR_TRY(ParseDuration(arguments.older_than)));
}

void AddCompile(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<CompileArguments>();
  CLI::App* command = AddCommand(
      job, context, "compile",
      "Find what computes a job's step fastest on this machine, and keep it for all runs with train.compile: on",
      "  millrace job compile job.yaml --cache s3://runs/compiled\n"
      "  millrace job compile job.yaml --largest-micro-batch 64 --scale-lr linear\n"
      "  millrace job compile --list --cache s3://runs/compiled\n"
      "  millrace --dry-run job compile --prune --older-than 30d --cache s3://runs/compiled",
      Act(context, CompileJob, arguments));
  AddStartArguments(*command, arguments->job);
  command->get_option("JOB.yaml")->required(false);
  command->add_option("--cache", arguments->cache,
                      "The folder of compiled steps (default: train.compile_cache, or the user's cache)");
  CLI::Option* list = command->add_flag("--list", arguments->list, "Print the compiled steps of the cache");
  CLI::Option* prune =
      command->add_flag("--prune", arguments->prune, "Delete compiled steps that are damaged or old")->excludes(list);
  CLI::Option* largest =
      command
          ->add_option("--largest-micro-batch", arguments->largest_micro_batch,
                       "Compile with the largest micro-batch, up to this number, that fits the memory, and print it")
          ->check(Between(1, 1 << 16));
  command
      ->add_option("--scale-lr", arguments->scale_lr,
                   "With it: how the printed learning rate follows the global batch (default: none)")
      ->check(OneOf({"none", "linear", "sqrt"}))
      ->needs(largest);
  command->add_option("--older-than", arguments->older_than, "With --prune: the age that is old (default: 90d)")
      ->needs(prune);
}

/// Does the part of one pod: the first supervises, the others are agents. The launcher of an MPIJob has no index.
Result<int> RunPod(const Context& context, JobArguments arguments) {
  const char* index = std::getenv("JOB_COMPLETION_INDEX");
  if (index != nullptr && std::string_view(index) != "0") {
    return RunAgent(context, {.listen = fmt::format("0.0.0.0:{}", jobs::kAgentPort), .key_file = jobs::kAgentKeyFile});
  }
  arguments.no_check = true;  // `job submit` has checked
  arguments.in_pod = true;
  // The network of a pod may come up after its programs.
  Context patient = context;
  if (!patient.globals.connect.first_contact) patient.globals.connect.first_contact = std::chrono::minutes(1);
  return RunJob(patient, arguments);
}

void AddPod(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* pod = AddCommand(job, context, "pod", "Do the part of a pod in a job that `job submit` gave to Kubernetes",
                             "", Act(context, RunPod, arguments));
  pod->group("");
  AddJobFileArguments(*pod, arguments);
}

void AddNameCommands(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<NameArguments>();
  auto add = [&](std::string name, std::string description, std::string examples, auto function) {
    CLI::App* command = AddCommand(job, context, std::move(name), std::move(description), std::move(examples),
                                   Act(context, function, arguments));
    command->add_option("NAME", arguments->name, "The job's name, or its log.url, such as s3://runs/llama-demo")
        ->required();
    return command;
  };
  add("status", "Show the state of a job; without a name, of all jobs",
      "  millrace job status\n  millrace job status llama-demo\n  millrace job status s3://runs/llama-demo\n  millrace "
      "--json job status llama-demo",
      ShowStatus)
      ->get_option("NAME")
      ->required(false);
  CLI::App* logs =
      add("logs", "Print a rank's output",
          "  millrace job logs llama-demo --follow\n  millrace job logs llama-demo --rank 1 --errors", ShowLogs);
  logs->add_option("--rank", arguments->rank, "Which rank")->check(AtLeast(0))->capture_default_str();
  logs->add_flag("--errors", arguments->errors, "Print standard error instead of standard output");
  logs->add_flag("-f,--follow", arguments->follow, "Print new output until the job ends");
  logs->add_option("--tail", arguments->tail, "Begin with the last N lines (default: all)")
      ->check(Between(1, 1'000'000))
      ->type_name("N");
  add("attach", "Print rank 0's output until the job ends; end as it ends", "  millrace job attach llama-demo",
      AttachToJob);
  CLI::App* stop = add("stop", "Ask a job to save a checkpoint and stop; wait until it has stopped",
                       "  millrace job stop llama-demo", StopOneJob);
  add("list", "List the jobs of this machine, or those whose log.url is in a folder",
      "  millrace job list\n  millrace job list s3://runs\n  millrace --json job list", ListAllJobs)
      ->get_option("NAME")
      ->description("The folder of the jobs' log.url, such as s3://runs (default: the jobs of this machine)")
      ->type_name("FOLDER")
      ->required(false);
  stop->add_flag("--no-wait", arguments->no_wait, "Do not wait until the job has stopped");
  add("delete", "Delete what is kept of a job that has ended: state and logs, and its objects in a cluster",
      "  millrace job delete llama-demo", DeleteOneJob);
}

}  // namespace

void AddJobCommands(CLI::App& app, Context& context) {
  AddRunCommand(
      app, context, "train", "Train as a job file describes, in the foreground (the same as `job run`)",
      "  millrace train job.yaml\n"
      "  millrace train job.yaml --dry-run       # checks data, tokenizer, buckets and rights; starts nothing\n"
      "  millrace train job.yaml --set train.steps=100 --set run.processes_per_node=1");
  CLI::App* job = app.add_subcommand("job", "Run training jobs, watch and stop them");
  job->require_subcommand(1);
  AddRunCommand(*job, context, "run", "Start the ranks of a job; restart them when one fails",
                "  millrace job run job.yaml\n"
                "  millrace job run job.yaml --set train.optimizer.lr=1e-4 --json");
  AddPlan(*job, context);
  AddCommand(*job, context, "machine", "Measure this machine, and print its description for `job plan --machine`",
             "  millrace job machine > here.yaml\n"
             "  millrace job plan job.yaml --machine here.yaml",
             [&context] {
               const auto described = DescribeMachine(context);
               return described ? *described : ReportError(context, described.error());
             });
  AddCompile(*job, context);
  AddRender(*job, context);
  AddCommand(*job, context, "schema", "Print the JSON schema of job files, by which editors complete and check them",
             "  millrace job schema > job.schema.json", [] {
               Print("{}\n", DumpJsonPretty(jobs::JobSchema()));
               return kExitOk;
             });
  AddSubmit(*job, context);
  AddNameCommands(*job, context);
  AddAgentCommand(*job, context);
  AddPod(*job, context);
  AddUnpackSourceCommand(*job, context);
  AddSweepCommand(*job, context);

  const auto add_program = [&](const std::string& command, const std::string& description) {
    CLI::App* added = AddCommand(app, context, command, description, "",
                                 [&context, command] { return RunProgram(context, command); });
    added->prefix_command();  // whatever follows is for the program, --help too
    added->fallthrough(false);
    added->set_help_flag();
  };
  add_program("serve", "Serve a model over HTTP (millrace-serve)");
  add_program("eval", "Measure a model: perplexity, multiple choice, exact match (millrace-eval)");
}

}  // namespace millrace::cli
