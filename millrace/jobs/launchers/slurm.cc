#include "millrace/jobs/launchers/slurm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <span>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/jobs/elastic.h"

namespace millrace::jobs {
namespace {

/// The grace time of ranks (Policy::Options::grace), and as much for the first and last words.
constexpr std::int64_t kLeaveSeconds = 180;

/// Quotes for a shell.
std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// Quotes a value of an #SBATCH line, where backslashes and double quotes count.
std::string SbatchQuoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

/// Returns what a command of Slurm prints. `quiet` keeps its complaints from the user.
Result<Subprocess::Output> RunSlurm(std::vector<std::string> argv, bool quiet,
                                    const std::map<std::string, std::string>& env = {}) {
  const std::string program = argv.front();
  auto ran = Subprocess::Run({.argv = std::move(argv), .env = env, .stderr_file = quiet ? "/dev/null" : ""});
  if (!ran && ran.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound, "{} is not in PATH: the launcher slurm needs Slurm's commands on this machine",
                program);
  }
  return ran;
}

/// Runs a command that changes a job.
Status ChangeJob(const std::string& id, std::vector<std::string> argv) {
  argv.push_back(id);
  const std::string program = argv.front();
  const auto ran = MR_TRY(RunSlurm(std::move(argv), false));
  if (!ran.state.ok()) return Fail(Code::kUnavailable, "{} of Slurm job {}: {}", program, id, ran.state.ToString());
  return {};
}

/// Returns the value of " NAME=value " in a line of `scontrol --oneliner show`; values that we ask for have no spaces.
std::string FieldOf(std::string_view line, std::string_view name) {
  for (std::string_view word : Split(line, ' ')) {
    if (word.starts_with(name) && word.substr(name.size()).starts_with('=')) {
      std::string value(word.substr(name.size() + 1));
      while (!value.empty() && value.back() == '\n') value.pop_back();
      return value == "(null)" || value == "None" ? "" : value;
    }
  }
  return "";
}

bool IsOneOf(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

/// Returns whether a job was submitted as the allocation that this process is in.
Result<bool> IsThisAllocations(const std::filesystem::path& root, std::string_view name) {
  const std::string id = AllocationId();
  const auto submission = MR_TRY(SubmissionOf(root, name));
  return !id.empty() && submission && submission->id == id;
}

}  // namespace

bool SlurmJob::waits() const {
  constexpr std::array<std::string_view, 4> kWaiting = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"};
  return IsOneOf(state, kWaiting);
}

bool SlurmJob::runs() const {
  constexpr std::array<std::string_view, 7> kRunning = {"RUNNING",  "CONFIGURING", "SUSPENDED", "STOPPED",
                                                        "RESIZING", "SIGNALING",   "STAGE_OUT"};
  return IsOneOf(state, kRunning);
}

bool SlurmJob::leaves() const { return state == "COMPLETING"; }

std::string RenderBatchScript(const Spec& spec, const BatchOptions& options) {
  const SlurmSpec& slurm = spec.run.slurm;
  std::string script = "#!/bin/sh\n";
  const auto set = [&](std::string_view option, std::string_view value) {
    script += fmt::format("#SBATCH --{}={}\n", option, SbatchQuoted(value));
  };
  const auto set_given = [&](std::string_view option, std::string_view value) {
    if (!value.empty()) set(option, value);
  };
  set("job-name", spec.name);
  set_given("array", options.array);
  const std::vector<int> counts = NodeCounts(spec);
  const int most = counts.front() + spec.run.spares;
  const int fewest = counts.back() + spec.run.spares;
  set("nodes", fewest == most ? std::to_string(most) : fmt::format("{}-{}", fewest, most));
  // The supervisor goes on without a lost node; else Slurm would end the allocation.
  if (most > counts.back()) script += "#SBATCH --no-kill\n";
  // With a range, a number of tasks would keep Slurm at the fewest nodes.
  if (fewest == most) set("ntasks-per-node", "1");
  set_given("partition", slurm.partition);
  set_given("account", slurm.account);
  set_given("qos", slurm.qos);
  set_given("constraint", slurm.constraint);
  set_given("exclude", fmt::format("{}", fmt::join(slurm.exclude, ",")));
  std::int64_t leave = kLeaveSeconds;
  if (slurm.time) {
    const auto minutes = std::chrono::ceil<std::chrono::minutes>(*slurm.time).count();
    set("time", std::to_string(minutes));
    leave = std::min<std::int64_t>(leave, minutes * 60 / 2);
  }
  set("signal", fmt::format("B:TERM@{}", leave));
  set("output", options.output);
  script += "#SBATCH --open-mode=append\n#SBATCH --requeue\n";
  if (slurm.cpus_per_node > 0) {
    set("cpus-per-task", std::to_string(slurm.cpus_per_node));
  } else {
    script += "#SBATCH --exclusive\n";
  }
  for (const std::string& option : slurm.options) script += fmt::format("#SBATCH {}\n", option);
  std::string job_file = ShellQuoted(options.job_file);
  if (const auto at = job_file.rfind("%a"); !options.array.empty() && at != job_file.npos) {
    job_file.replace(at, 2, "'\"$SLURM_ARRAY_TASK_ID\"'");
  }
  script += fmt::format("exec {} job run --no-check {}\n", ShellQuoted(options.millrace), job_file);
  return script;
}

Result<std::string> SubmitBatch(const std::string& script, const std::map<std::string, std::string>& env) {
  const TempDir folder = MR_TRY(TempDir::Create());
  const std::filesystem::path path = folder.path() / "batch.sh";
  MR_TRY(WriteFileAtomic(path, AsBytes(script)));
  const auto ran = MR_TRY(RunSlurm({"sbatch", "--parsable", path.string()}, false, env));
  if (!ran.state.ok()) {
    return Fail(Code::kInvalidArgument, "sbatch did not take the job ({}); change run.slurm as its message says",
                ran.state.ToString());
  }
  // "ID" or "ID;cluster"
  const std::string_view line = std::string_view(ran.stdout_text).substr(0, ran.stdout_text.find_first_of(";\n"));
  if (line.empty()) return Fail(Code::kInternal, "sbatch printed no job id");
  return std::string(line);
}

Result<SlurmJob> FindSlurmJob(const std::string& id) {
  const auto ran = MR_TRY(RunSlurm({"scontrol", "--oneliner", "show", "job", id}, true));
  SlurmJob job{.id = id};
  if (!ran.state.ok()) {
    const auto pinged = MR_TRY(RunSlurm({"scontrol", "ping"}, true));
    if (!pinged.state.ok() || pinged.stdout_text.find(" UP") == std::string::npos) {
      return Fail(Code::kUnavailable, "Slurm's controller does not answer");
    }
    return job;
  }
  job.state = FieldOf(ran.stdout_text, "JobState");
  job.reason = FieldOf(ran.stdout_text, "Reason");
  job.nodes = FieldOf(ran.stdout_text, "NodeList");
  job.restarts = std::atoi(FieldOf(ran.stdout_text, "Restarts").c_str());
  return job;
}

Status CancelSlurmJob(const std::string& id) { return ChangeJob(id, {"scancel"}); }
Status TerminateBatch(const std::string& id) { return ChangeJob(id, {"scancel", "--batch", "--signal=TERM"}); }
Status RequeueSlurmJob(const std::string& id) { return ChangeJob(id, {"scontrol", "requeue"}); }

bool DrainSlurmNode(const std::string& node, std::string_view why) {
  const auto ran = RunSlurm(
      {"scontrol", "update", "NodeName=" + node, "State=DRAIN", fmt::format("Reason=millrace: {}", why)}, true);
  return ran && ran->state.ok();
}

std::string AllocationId() {
  const char* array = std::getenv("SLURM_ARRAY_JOB_ID");
  const char* element = std::getenv("SLURM_ARRAY_TASK_ID");
  if (array != nullptr && element != nullptr) return fmt::format("{}_{}", array, element);
  const char* id = std::getenv("SLURM_JOB_ID");
  return id != nullptr ? id : "";
}

Result<std::vector<RemoteNode>> AllocatedNodes(const std::string& millrace) {
  const char* list = std::getenv("SLURM_JOB_NODELIST");
  if (list == nullptr) {
    return Fail(Code::kPreconditionFailed,
                "not within an allocation of Slurm: use `millrace job submit`, or run this under salloc or sbatch");
  }
  const auto names = MR_TRY(RunSlurm({"scontrol", "show", "hostnames", list}, false));
  std::vector<RemoteNode> nodes;
  for (std::string_view line : Split(names.stdout_text, '\n')) {
    if (line.empty()) continue;
    const std::string name(line);
    const auto shown = MR_TRY(RunSlurm({"scontrol", "--oneliner", "show", "node", name}, true));
    const std::string address = FieldOf(shown.stdout_text, "NodeAddr");
    nodes.push_back({.name = name,
                     .address = address.empty() ? name : address,
                     .command = {"srun", "--nodes=1", "--ntasks=1", "--nodelist=" + name, "--overlap",
                                 "--cpu-bind=none", "--job-name=millrace-agent", millrace, "job", "agent"}});
  }
  if (!names.state.ok() || nodes.empty()) {
    return Fail(Code::kUnavailable, "scontrol does not tell the nodes of {}", list);
  }
  return nodes;
}

void ApplySlurmState(JobStatus& status, const SlurmJob& found, bool stop_requested) {
  if (found.waits()) {
    status.state = "queued";
    status.message = fmt::format("Slurm job {} waits{}", found.id, found.reason.empty() ? "" : ": " + found.reason);
    status.ranks.clear();
  } else if (found.runs() && (status.state == "queued" || !status.active())) {
    status.state = "starting";
    status.message = fmt::format("Slurm job {} has {}", found.id, found.nodes);
    status.ranks.clear();
  } else if (found.leaves() && (status.active() || status.state == "interrupted")) {
    status.state = "stopping";  // it may yet go back to the queue
  } else if (!found.runs() && !found.leaves() && status.state == "queued" && stop_requested) {
    status.state = "interrupted";
    status.message = "stopped before it started";
  } else if (!found.runs() && !found.leaves() && status.active()) {
    status.state = "lost";
    status.message = fmt::format("Slurm job {} is gone{}; its last words: {}", found.id,
                                 found.state.empty() ? "" : " (" + found.state + ")", status.message);
  }
}

Result<bool> IsStoppedInSlurm(const std::filesystem::path& root, std::string_view name) {
  return MR_TRY(IsThisAllocations(root, name)) && MR_TRY(IsStopRequested(root, name));
}

Result<bool> RequeueIfInterrupted(const std::filesystem::path& root, std::string_view name) {
  if (!MR_TRY(IsThisAllocations(root, name)) || MR_TRY(IsStopRequested(root, name))) return false;
  const std::string id = AllocationId();
  // A job that was cancelled is not to come back.
  if (MR_TRY(FindSlurmJob(id)).state != "RUNNING") return false;
  MR_TRY(RequeueSlurmJob(id));
  return true;
}

}  // namespace millrace::jobs
