// millrace sagemaker train: the program of a SageMaker training container.
#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/run_job.h"
#include "millrace/base/config.h"
#include "millrace/base/environment.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/jobs/sagemaker/record_io.h"
#include "millrace/jobs/sagemaker/training_container.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {
namespace {

using jobs::TrainingChannel;
using jobs::TrainingContainer;

constexpr std::uint64_t kMaxNamedFile = 4 * kMiB;
/// Where ranks meet, as in SageMaker's own containers. Hosts cannot tell each other a free port.
constexpr int kMasterPort = 7777;
/// The number of bytes of the failure file that SageMaker shows as FailureReason.
constexpr std::size_t kMaxReason = 1024;

/// Devices whose names are this prefix and a number.
int CountDevices(std::string_view prefix) {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string_view rest = std::string_view(name).substr(std::min(prefix.size(), name.size()));
    const bool is_number = !rest.empty() && std::ranges::all_of(rest, [](unsigned char c) { return std::isdigit(c); });
    if (name.starts_with(prefix) && is_number) ++count;
  }
  return count;
}

/// Returns the value of a variable, or "" if it is not set.
std::string ValueOf(const char* variable) { return EnvironmentVariable(variable).value_or(""); }

/// Runs a program until it ends. Says every half a minute that the program still runs: pip shows no progress without a
/// terminal. Errors: kInternal if it fails; what it says is on standard error.
Status RunProgram(const Context& context, std::vector<std::string> argv, std::string_view purpose) {
  auto process = MR_TRY(Subprocess::Start({.argv = std::move(argv), .env = GlobalsEnvironment(context.globals)}));
  constexpr Duration kLook = std::chrono::milliseconds(200), kGrace = std::chrono::seconds(5);
  constexpr Duration kNotice = std::chrono::seconds(30);
  const TimePoint began = SystemClock().Now();
  TimePoint notice = began + kNotice;
  std::optional<ExitState> ended;
  while (!(ended = process.Wait(kLook))) {
    if (const TimePoint now = SystemClock().Now(); now >= notice && !context.globals.quiet) {
      PrintError("millrace: {} goes on, for {} so far\n", purpose, FormatDuration(now - began));
      notice = now + kNotice;
    }
    if (!context.stop.stop_requested()) continue;
    process.Stop(kGrace);
    return Fail(Code::kCancelled, "stopped while it was {}", purpose);
  }
  if (!ended->ok()) return Fail(Code::kInternal, "{} failed with {}", purpose, ended->ToString());
  return {};
}

Result<std::string> ThisProgram() { return (MR_TRY(ProgramDirectory()) / "millrace").string(); }

/// Copies what a pipe carries into a file, because samples are shuffled over all of them. A record of RecordIO is a
/// whole object, whose last line may have no end.
Result<std::string> SpoolPipe(const TrainingContainer& container, const TrainingChannel& channel) {
  const std::filesystem::path folder = container.FolderOf(channel.name + ".spool");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(Code::kIo, "cannot make the folder {}: {}", folder.string(), error.message());
  const bool is_text = channel.content_type == "text/plain";
  const std::filesystem::path path = folder / (is_text ? "records.txt" : "records.jsonl");
  const UniqueFd pipe = MR_TRY(OpenFile(container.PipeOf(channel), O_RDONLY | O_CLOEXEC));
  const UniqueFd file = MR_TRY(OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC));
  std::vector<std::byte> buffer(kMiB);
  std::uint64_t copied = 0;
  std::byte last{'\n'};
  const auto write = [&](ByteSpan bytes) -> Status {
    MR_TRY(WriteFully(file.get(), bytes, copied, path.string()));
    copied += bytes.size();
    if (!bytes.empty()) last = bytes.back();
    return {};
  };
  jobs::RecordIoDecoder records(
      write, [&] { return last == std::byte{'\n'} ? Status() : write(AsBytes(std::string_view("\n"))); });
  for (;;) {
    const ssize_t size = ::read(pipe.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return Fail(ErrnoError(errno, "cannot read " + container.PipeOf(channel).string()));
    if (size == 0) break;
    const ByteSpan bytes = ByteSpan(buffer).first(static_cast<std::size_t>(size));
    const Status taken = channel.has_record_io ? records.Add(bytes) : write(bytes);
    if (!taken) return Fail(taken.error().Context(fmt::format("channel {}", channel.name)));
  }
  if (const Status whole = records.Finish(); !whole) {
    return Fail(whole.error().Context(fmt::format("channel {}", channel.name)));
  }
  PrintError("millrace: channel {}: {} came through its pipe\n", channel.name, FormatBytes(copied));
  return path.string();
}

/// Returns the assignment that makes a channel's data those of the job.
Result<std::string> SourcesAssignment(const TrainingContainer& container, const TrainingChannel& channel,
                                      std::string_view key) {
  if (channel.is_sharded && container.hosts.size() > 1) {
    return Fail(Code::kInvalidArgument,
                "channel {}: S3DistributionType is ShardedByS3Key, but every host must see all objects: use "
                "FullyReplicated; Millrace divides the records among the ranks",
                channel.name);
  }
  const std::string url =
      channel.is_pipe ? MR_TRY(SpoolPipe(container, channel)) : container.FolderOf(channel.name).string() + "/";
  return fmt::format("{}={}", key, DumpJson(Json::array({{{"url", url}}})));
}

/// The job that a container runs.
struct ContainerJob {
  JobArguments arguments;
  std::unique_ptr<TempDir> folder;  ///< of a job file that was made here
};

/// Adds the assignments that hold with and without a script.
void AddPlacement(const TrainingContainer& container, JobArguments& arguments) {
  std::ranges::move(jobs::PlacementAssignments(container, ValueOf("TRAINING_JOB_NAME")),
                    std::back_inserter(arguments.assignments));
}

/// Returns the path of the job file: the hyperparameter job_file, or job.yaml of the channel job; "" if there is none.
Result<std::string> FindJobFile(const Context& context, const TrainingContainer& container,
                                const std::filesystem::path& scratch) {
  const auto named = container.hyperparameters.find("job_file");
  if (named == container.hyperparameters.end()) {
    const std::filesystem::path usual = container.FolderOf("job") / "job.yaml";
    std::error_code error;
    return std::filesystem::exists(usual, error) ? usual.string() : "";
  }
  if (!named->second.is_string()) return Fail(Code::kInvalidArgument, "the hyperparameter job_file must be a URL");
  std::string url = named->second.get<std::string>();
  if (url.find("://") == std::string::npos) return url;
  std::string path = (scratch / "named.yaml").string();
  MR_TRY(RunProgram(context, {MR_TRY(ThisProgram()), "--quiet", "cp", url, path}, "getting " + url));
  return path;
}

/// The job of Millrace's own trainer.
Result<ContainerJob> TrainerJob(const Context& context, const TrainingContainer& container) {
  auto scratch = std::make_unique<TempDir>(MR_TRY(TempDir::Create()));
  JobArguments arguments;
  arguments.file = MR_TRY(FindJobFile(context, container, scratch->path()));
  if (arguments.file.empty()) {
    arguments.file = (scratch->path() / "job.yaml").string();
    MR_TRY(WriteFileAtomic(arguments.file, AsBytes(std::string_view("name: training\n"))));
  }
  arguments.assignments = MR_TRY(jobs::AssignmentsOf(container, {"job_file"}));
  auto document = MR_TRY(config::Document::Parse(MR_TRY(ReadFile(arguments.file, kMaxNamedFile)), arguments.file));
  for (const std::string& assignment : arguments.assignments) MR_TRY(document.Set(assignment));
  if (!document.Root()["checkpoint"]["url"]) {
    if (container.hosts.size() > 1) {
      return Fail(Code::kInvalidArgument,
                  "give the hyperparameter checkpoint.url, a bucket: {} hosts have no common folder for checkpoints",
                  container.hosts.size());
    }
    // SageMaker mirrors this folder to checkpoint_s3_uri, and brings it back after an interruption.
    arguments.assignments.push_back("checkpoint.url=" + DumpJson((container.base / "checkpoints").string()));
  }
  // A container that is started again gets new copies of the files.
  if (!document.Root()["data"]["same_by_size"]) arguments.assignments.emplace_back("data.same_by_size=true");
  const auto is_training_data = [](const TrainingChannel& channel) {
    return channel.name == "train" || channel.name == "training";
  };
  if (!document.Root()["data"]["sources"] && std::ranges::none_of(container.channels, is_training_data)) {
    return Fail(Code::kInvalidArgument,
                "there are no training data: give a channel named train, or the hyperparameter data.sources");
  }
  for (const TrainingChannel& channel : container.channels) {
    const bool is_train = is_training_data(channel);
    constexpr std::string_view kEvaluation[] = {"eval", "test", "valid", "validation"};
    if (is_train) arguments.assignments.push_back(MR_TRY(SourcesAssignment(container, channel, "data.sources")));
    if (std::ranges::find(kEvaluation, channel.name) != std::end(kEvaluation)) {
      arguments.assignments.push_back(MR_TRY(SourcesAssignment(container, channel, "eval.sources")));
    }
  }
  AddPlacement(container, arguments);
  return ContainerJob{.arguments = std::move(arguments), .folder = std::move(scratch)};
}

/// Brings the user's code to a folder and returns that. Its archive is made by the SDK.
Result<std::filesystem::path> FetchCode(const Context& context, const TrainingContainer& container) {
  const std::string from = container.Reserved("sagemaker_submit_directory");
  std::filesystem::path code = container.base / "code";
  if (from.find("://") != std::string::npos) {
    const std::string archive = (container.base / "sourcedir.tar.gz").string();
    std::error_code error;
    std::filesystem::create_directories(code, error);
    if (error) return Fail(Code::kIo, "cannot make the folder {}: {}", code.string(), error.message());
    MR_TRY(RunProgram(context, {MR_TRY(ThisProgram()), "--quiet", "cp", from, archive}, "getting " + from));
    // tar refuses members that lead out of the folder.
    MR_TRY(RunProgram(
        context, {"tar", "--extract", "--gzip", "--no-same-owner", "--file", archive, "--directory", code.string()},
        "unpacking " + from));
  } else if (!from.empty()) {
    code = from;
  }
  const std::filesystem::path requirements = code / "requirements.txt";
  std::error_code error;
  if (std::filesystem::exists(requirements, error)) {
    MR_TRY(RunProgram(context, {"python3", "-m", "pip", "install", "-r", requirements.string()},
                      "installing requirements.txt"));
  }
  return code;
}

/// Returns how many processes of a script a host runs.
int ScriptProcesses(const TrainingContainer& container, int gpus) {
  const auto number = [&](const char* name) { return std::atoi(container.Reserved(name).c_str()); };
  if (const int wanted = number("sagemaker_mpi_num_of_processes_per_host"); wanted > 0) return wanted;
  return container.is_distributed() ? std::max(1, gpus) : 1;
}

/// The job of a script of the user's, as the containers of AWS run it.
Result<ContainerJob> ScriptJob(const Context& context, const TrainingContainer& container, const std::string& script) {
  const int gpus = CountDevices("nvidia");
  const jobs::ContainerHardware hardware{.cpus = UsableCores(), .gpus = gpus, .neurons = CountDevices("neuron")};
  const std::filesystem::path code = MR_TRY(FetchCode(context, container));
  std::vector<std::string> command = {script.ends_with(".sh") ? "bash" : "python3", script};
  const std::vector<std::string> words = jobs::CommandLineOf(container.hyperparameters);
  command.insert(command.end(), words.begin(), words.end());
  auto scratch = std::make_unique<TempDir>(MR_TRY(TempDir::Create()));
  JobArguments arguments;
  arguments.file = (scratch->path() / "job.yaml").string();
  arguments.env = jobs::ScriptEnvironment(container, hardware);
  const std::string path = ValueOf("PYTHONPATH");
  arguments.env["PYTHONPATH"] = path.empty() ? code.string() : code.string() + ":" + path;
  const Json job = {
      {"name", "training"},
      {"run",
       {{"command", command}, {"directory", code.string()}, {"processes_per_node", ScriptProcesses(container, gpus)}}},
      {"checkpoint", {{"url", (container.base / "checkpoints").string()}}}};
  MR_TRY(WriteFileAtomic(arguments.file, AsBytes(DumpJson(job))));  // JSON is YAML
  AddPlacement(container, arguments);
  return ContainerJob{.arguments = std::move(arguments), .folder = std::move(scratch)};
}

/// The names of hosts come a little after the containers.
Status AwaitHost(const Context& context, const std::string& host) {
  constexpr Duration kPatience = std::chrono::minutes(5), kPause = std::chrono::milliseconds(500);
  const TimePoint until = SystemClock().Now() + kPatience;
  for (;;) {
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (error == 0) ::freeaddrinfo(found);
    if (error == 0) return {};
    if (context.stop.stop_requested()) return Fail(Code::kCancelled, "stopped");
    if (SystemClock().Now() >= until) {
      return Fail(Code::kUnavailable, "the host {} has no address: {}", host, ::gai_strerror(error));
    }
    SystemClock().SleepUntil(SystemClock().Now() + kPause);
  }
}

/// Writes the newest checkpoint as a Hugging Face folder where SageMaker takes the model from.
Status LeaveModel(const Context& context, const TrainingContainer& container, const jobs::Spec& spec) {
  const std::string model = (container.base / "model").string();
  return RunProgram(context, {MR_TRY(ThisProgram()), "--quiet", "ckpt", "export", spec.checkpoint.url, model},
                    "writing the model to " + model);
}

Result<int> RunContainer(const Context& context, const TrainingContainer& container) {
  const std::string script = container.Reserved("sagemaker_program");
  ContainerJob job = MR_TRY(script.empty() ? TrainerJob(context, container) : ScriptJob(context, container, script));
  const jobs::Spec spec = MR_TRY(ReadSpec(job.arguments));
  const int ranks = spec.run.processes_per_node, hosts = static_cast<int>(container.hosts.size());
  job.arguments.place =
      jobs::LocalLauncher::RankPlacement{.first_rank = container.host_index() * ranks,
                                         .world_size = hosts * ranks,
                                         .master_address = hosts > 1 ? container.hosts.front() : "127.0.0.1",
                                         .master_port = hosts > 1 ? kMasterPort : 0};
  if (hosts > 1) MR_TRY(AwaitHost(context, container.hosts.front()));
  // The job's folder goes with the output, so that its report and its logs are kept.
  ::setenv("MILLRACE_STATE_DIR", (container.base / "output" / "data" / "millrace").c_str(), 0);
  const int status = MR_TRY(RunJob(context, job.arguments));
  const auto ended = jobs::ReadJob(MR_TRY(jobs::StateRoot()), spec.name);
  if (ended && ended->state == "failed") return Fail(Code::kInternal, "{}", ended->message);
  const bool is_done = ended && ended->state == "done";
  if (is_done && script.empty() && container.host_index() == 0) MR_TRY(LeaveModel(context, container, spec));
  return status;
}

Result<int> Train(const Context& context, const std::filesystem::path& base) {
  MR_TRY(RefuseDryRun(context, "sagemaker train"));
  Result<int> status = [&]() -> Result<int> {
    return RunContainer(context, MR_TRY(jobs::ReadTrainingContainer(base)));
  }();
  if (status || status.error().code() == Code::kCancelled) return status;
  const std::filesystem::path failure = base / "output" / "failure";
  std::error_code error;
  std::filesystem::create_directories(failure.parent_path(), error);
  if (!std::filesystem::exists(failure, error)) {  // a script may have written it
    const std::string reason = status.error().ToString();
    (void)WriteFileAtomic(failure, AsBytes(std::string_view(reason).substr(0, kMaxReason)));
  }
  return status;
}

}  // namespace

void AddSageMakerCommands(CLI::App& app, Context& context) {
  CLI::App* sagemaker = app.add_subcommand("sagemaker", "Run as the container of a SageMaker job");
  sagemaker->require_subcommand(1);
  auto base = std::make_shared<std::string>(ValueOf("SAGEMAKER_BASE_DIR"));
  if (base->empty()) *base = "/opt/ml";
  CLI::App* train =
      AddCommand(*sagemaker, context, "train", "Train as the files below /opt/ml say; what SageMaker starts as `train`",
                 "  millrace sagemaker train\n"
                 "  millrace sagemaker train --base ./ml",
                 [&context, base] {
                   const auto status = Train(context, *base);
                   return status ? *status : ReportError(context, status.error());
                 });
  train->add_option("--base", *base, "The folder in place of /opt/ml (default: SAGEMAKER_BASE_DIR)");
}

}  // namespace millrace::cli
