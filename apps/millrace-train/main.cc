// millrace-train: one rank of a training job. `millrace train` and `millrace job run` start it; alone it trains on one
// rank.
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "apps/common/globals.h"
#include "apps/common/lifeline.h"
#include "apps/common/output.h"
#include "apps/millrace-train/console.h"
#include "apps/millrace-train/job_options.h"
#include "apps/millrace-train/nodes_command.h"
#include "apps/millrace-train/outputs_command.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/process/descriptor_limit.h"
#include "millrace/base/text.h"
#include "millrace/collectives/connect.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/parallel/connect_gpus.h"
#include "millrace/engine/runtime.h"
#include "millrace/engine/tuning/measure_machine.h"
#include "millrace/jobs/policy.h"
#include "millrace/object/open/open.h"
#include "millrace/train/checks.h"
#include "millrace/train/trainer.h"

namespace millrace {
namespace {

/// A rank that dies is noticed at once; this bounds the wait for one that hangs or is slow
/// to index its data. The supervisor's heartbeat notices earlier.
constexpr auto kRankTimeout = std::chrono::minutes(30);

/// How often the ranks exchange their figures: often enough for a live view.
constexpr auto kRankInterval = std::chrono::seconds(1);

struct Arguments {
  std::string job_file;
  std::vector<std::string> assignments;
  bool compile_only = false;
  bool takes_over = false;
  cli::Globals globals;
};

/// Returns where the supervisor wants the history. Empty if this machine does not have the supervisor's folder.
std::filesystem::path HistoryFile() {
  const char* variable = std::getenv("MILLRACE_HISTORY_FILE");
  const std::filesystem::path path(variable != nullptr ? variable : "");
  std::error_code error;
  return std::filesystem::is_directory(path.parent_path(), error) ? path : std::filesystem::path();
}

/// Stores the collective in `group`; the caller must not destroy it (see main).
Result<int> Run(const Arguments& arguments, std::unique_ptr<engine::Collective>& group, std::stop_token stop) {
  const std::string text = MR_TRY(ReadFile(arguments.job_file, jobs::Spec::kMaxFile));
  const jobs::Spec spec = MR_TRY(jobs::Spec::Parse(text, arguments.job_file, arguments.assignments));
  if (!spec.run.command.empty()) {
    return Fail(Code::kInvalidArgument, "{}: the job runs a program of its own; `millrace job run {}` starts it",
                arguments.job_file, arguments.job_file);
  }
  if (arguments.globals.dry_run) {
    cli::Print("{}", spec.Render());
    return 0;
  }
  const collectives::RankInfo info = MR_TRY(collectives::RankInfo::FromEnvironment());
  train::Options options = MR_TRY(OptionsOf(spec));
  options.memory_budget = arguments.globals.memory_budget;
  if (options.checkpoint.local) options.checkpoint.local->meeting_point = info.master_address;
  options.compile_only = arguments.compile_only;
  options.takes_over = arguments.takes_over;
  options.written_by = checkpoint::LocalProvenance("millrace-train", MILLRACE_VERSION);
  options.written_by.libraries["torch"] = TORCH_VERSION;
  options.log = Logger::Stderr(arguments.globals.log_level).With({"rank", info.rank});
  if (const char* path = std::getenv("MILLRACE_HEARTBEAT_FILE")) options.heartbeat_file = path;
  if (const char* run = std::getenv("MILLRACE_RUN")) options.run_id = run;
  if (const char* attempt = std::getenv("MILLRACE_ATTEMPT")) options.attempt = std::max(1, std::atoi(attempt));
  options.history_file = HistoryFile();
  options.tracking.folder = options.history_file.parent_path();
  options.tracking.ca_bundle = arguments.globals.connect.ca_bundle;
  if (!options.history_file.empty() || !options.reports.metrics_listen.empty()) options.rank_interval = kRankInterval;

  options.limit_threads = spec.train.threads == 0;
  engine::ConfigureRuntime(spec.train.threads > 0 ? spec.train.threads : ComputeThreads(info.local_size));
  options.device = MR_TRY(engine::ChooseDevice(spec.train.device, info.local_rank, train::PrecisionOf(options)));
  const int gpus = options.device.is_cpu() ? 0 : engine::GpuCount();
  const bool shares_gpu = !options.device.is_cpu() && info.local_size > gpus;
  if (shares_gpu && info.local_rank == 0) {
    options.log.Warning("ranks share GPUs, which is slow; set run.processes_per_node to the number of GPUs",
                        {{"ranks", info.local_size}, {"gpus", gpus}});
  }
  RaiseDescriptorLimit();  // on several machines, a rank has connections to every other one in each group
  group = MR_TRY(collectives::ConnectRanks(info, kRankTimeout));
  if (!options.device.is_cpu()) {
    engine::GpuGroup connected =
        MR_TRY(engine::ConnectGpus(std::move(group), options.device, shares_gpu, kRankTimeout));
    group = std::move(connected.group);
    if (info.rank == 0 && info.size > 1) {
      if (connected.through_host.empty()) {
        options.log.Info("ranks exchange over NCCL");
      } else {
        options.log.Warning("ranks exchange through the memory of the host", {{"why", connected.through_host}});
      }
    }
  }
  object::ConnectOptions connect = arguments.globals.connect;
  connect.log = options.log;
  const auto connection = MR_TRY(object::OpenConnection(std::move(connect)));
  Console console(arguments.globals.json);
  const train::RunOutcome outcome = MR_TRY(train::Train(*connection, *group, options, {&console}, stop));
  if (outcome.lost) {
    cli::PrintError("millrace-train: {}\n", outcome.lost->ToString());
    return jobs::kExitLost;
  }
  return outcome.stopped ? ToExitStatus(Code::kCancelled) : 0;
}

/// Measures the machine on all of its cores, and prints a JSON object: `f32`, `bf16`, `memory_bandwidth` and
/// `link_bandwidth`, as engine::MachineRates has them. Returns the exit status.
int PrintMachine() {
  engine::ConfigureRuntime(ComputeThreads());
  const auto rates = engine::CatchTorch("measuring this machine", [] { return engine::MeasureMachine(SystemClock()); });
  if (!rates) {
    cli::Print("{}\n", DumpJson(Json{{"error", rates.error().ToString()}}));
    return ToExitStatus(rates.error().code());
  }
  cli::Print("{}\n", DumpJson(Json{{"f32", rates->f32},
                                   {"bf16", rates->bf16},
                                   {"memory_bandwidth", rates->memory_bandwidth},
                                   {"link_bandwidth", rates->link_bandwidth}}));
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  if (const Status ready = EnsureComputeEnvironment(argv); !ready) {
    cli::PrintError("millrace-train: {}\n", ready.error().ToString());
    return 1;
  }
  const cli::SignalStop signals;
  const cli::SupervisorWatch lifeline;
  Arguments arguments;
  CLI::App app("One rank of a training job; `millrace train` starts as many as the job file says.", "millrace-train");
  app.set_version_flag("--version", MILLRACE_VERSION);
  app.add_option("job", arguments.job_file, "Job file (YAML)");
  app.add_option("--set", arguments.assignments, "key.path=value: replaces the value in the job file (repeatable)")
      ->allow_extra_args(false);
  app.add_flag("--compile-only", arguments.compile_only, "End when the step is compiled (millrace job compile)");
  app.add_flag("--take-over", arguments.takes_over, "End a run that saves to the same checkpoint.url");
  OutputsArguments outputs_arguments;
  const CLI::App* outputs = AddOutputsCommand(app, outputs_arguments);
  NodesArguments nodes_arguments;
  const CLI::App* nodes = AddNodesCommand(app, nodes_arguments);
  const CLI::App* machine = app.add_subcommand("machine", "Measure how fast this machine computes");
  cli::AddGlobalFlags(app, arguments.globals);
  app.footer("Examples:\n  millrace-train job.yaml\n  millrace-train job.yaml --set train.steps=100 --json");
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty() && arguments.job_file.empty()) throw CLI::RequiredError("job");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ToExitStatus(Code::kInvalidArgument);
  }
  std::unique_ptr<engine::Collective> group;
  const auto act = [&]() -> Result<int> {
    if (outputs->parsed()) return PrintOutputs(outputs_arguments, arguments.globals, signals.token());
    if (nodes->parsed()) return PrintNodes(nodes_arguments, group);
    if (machine->parsed()) return PrintMachine();
    return Run(arguments, group, signals.token());
  };
  const Result<int> run = act();
  if (!run) cli::PrintError("millrace-train: {}\n", run.error().ToString());
  cli::FlushOutput();
  // No restart makes a checkpoint of another model or other data fit: the status is that of a wrong job file.
  const bool is_foreign = !run && run.error().code() == Code::kPreconditionFailed;
  return run ? *run : ToExitStatus(is_foreign ? Code::kInvalidArgument : run.error().code());
}
