#include "millrace/jobs/state.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxStatusBytes = 1 << 20;  // bounds the memory; a rank adds some 100 bytes

constexpr FolderRole kJobRole = {.what = "the folder of the job", .cure = "set MILLRACE_STATE_DIR to another place"};

Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return Fail(Code::kIo, "cannot make the folder {}: {}; create it, or choose another", path.string(),
                error.message());
  }
  return {};
}

/// A job's name comes from a command line: it must stay a single path component.
Result<fs::path> FolderOf(const fs::path& root, std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not a job's name; choose one without / that is not empty, . or ..",
                name);
  }
  return root / "jobs" / name;
}

Result<JobStatus> ReadStatusFile(const fs::path& folder) {
  fs::path path = folder / "status.json";
  std::string text = MR_TRY(ReadFile(path, kMaxStatusBytes));
  return JobStatus::FromJson(MR_TRY(ParseJson(text, path.string())), path.string());
}

Status WriteStatusFile(const fs::path& folder, const JobStatus& status) {
  std::string text = DumpJsonPretty(status.ToJson()) + "\n";
  return ReplaceFile(folder / "status.json", AsBytes(text));
}

/// Returns whether a supervisor has locked the folder.
bool IsHeld(const fs::path& folder) {
  auto lock = OpenFile(folder / "lock", O_RDONLY);
  return lock && ::flock(lock->get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

std::uint64_t ProcessStart(std::int64_t pid) {
  constexpr std::uint64_t kMaxStatBytes = 4096;  // 52 fields of at most 20 digits are shorter (proc_pid_stat(5))
  constexpr std::size_t kStartField = 19;        // counted from 0 behind the program's name, which may hold anything
  const auto stat = ReadFile(fmt::format("/proc/{}/stat", pid), kMaxStatBytes);
  const std::size_t name_end = stat ? stat->rfind(") ") : std::string::npos;
  if (name_end == std::string::npos) return 0;
  const auto fields = Split(std::string_view(*stat).substr(name_end + 2), ' ');
  std::uint64_t start = 0;
  if (fields.size() > kStartField) {
    const std::string_view text = fields[kStartField];
    std::from_chars(text.data(), text.data() + text.size(), start);
  }
  return start;
}

bool JobStatus::active() const {
  constexpr std::array<std::string_view, 6> kActive = {"queued",     "starting", "running",
                                                       "restarting", "stopping", "unknown"};
  return std::find(kActive.begin(), kActive.end(), state) != kActive.end();
}

Json JobStatus::ToJson() const {
  Json json = {{"name", name},       {"state", state},       {"message", message}, {"pid", pid},
               {"attempt", attempt}, {"restarts", restarts}, {"started", started}, {"updated", updated}};
  if (pid_start != 0) json["pid_start"] = pid_start;
  if (step) json["step"] = *step;
  json["ranks"] = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Json entry = {{"rank", i}, {"pid", ranks[i].pid}, {"state", ranks[i].state}};
    if (ranks[i].step) entry["step"] = *ranks[i].step;
    if (!ranks[i].node.empty()) entry["node"] = ranks[i].node;
    json["ranks"].push_back(std::move(entry));
  }
  for (const Node& node : nodes) {
    json["nodes"].push_back({{"name", node.name}, {"state", node.state}});
    if (!node.reason.empty()) json["nodes"].back()["reason"] = node.reason;
  }
  if (cost) json["cost"] = {{"spent", cost->spent}, {"currency", cost->currency}};
  return json;
}

Result<JobStatus> JobStatus::FromJson(const Json& json, std::string_view what) {
  auto parse = [&]() -> Result<JobStatus> {
    JobStatus status;
    status.name = MR_TRY(JsonString(json, "name"));
    status.state = MR_TRY(JsonString(json, "state"));
    status.message = MR_TRY(JsonString(json, "message"));
    status.pid = MR_TRY(JsonInt(json, "pid"));
    if (JsonFind(json, "pid_start") != nullptr) status.pid_start = MR_TRY(JsonUint(json, "pid_start"));
    status.attempt = static_cast<int>(MR_TRY(JsonInt(json, "attempt")));
    status.restarts = static_cast<int>(MR_TRY(JsonInt(json, "restarts")));
    status.started = MR_TRY(JsonString(json, "started"));
    status.updated = MR_TRY(JsonString(json, "updated"));
    if (JsonFind(json, "step") != nullptr) status.step = MR_TRY(JsonUint(json, "step"));
    const Json* ranks = JsonFind(json, "ranks");
    if (ranks == nullptr || !ranks->is_array()) return millrace::Fail(Code::kCorrupt, "has no list of ranks");
    for (const Json& entry : *ranks) {
      Rank& rank = status.ranks.emplace_back();
      rank.pid = MR_TRY(JsonInt(entry, "pid"));
      rank.state = MR_TRY(JsonString(entry, "state"));
      if (JsonFind(entry, "step") != nullptr) rank.step = MR_TRY(JsonUint(entry, "step"));
      if (JsonFind(entry, "node") != nullptr) rank.node = MR_TRY(JsonString(entry, "node"));
    }
    if (const Json* nodes = JsonFind(json, "nodes"); nodes != nullptr && nodes->is_array()) {
      for (const Json& entry : *nodes) {
        Node& node = status.nodes.emplace_back();
        node.name = MR_TRY(JsonString(entry, "name"));
        node.state = MR_TRY(JsonString(entry, "state"));
        if (JsonFind(entry, "reason") != nullptr) node.reason = MR_TRY(JsonString(entry, "reason"));
      }
    }
    if (const Json* cost = JsonFind(json, "cost")) {
      const double spent = MR_TRY(JsonNumber(*cost, "spent"));
      std::string currency = MR_TRY(JsonString(*cost, "currency"));
      status.cost = Cost{spent, std::move(currency)};
    }
    return status;
  };
  auto status = parse();
  if (!status) return Fail(status.error().Context(std::string(what)).WithCode(Code::kCorrupt));
  return status;
}

JobStatus StartingStatus(const std::string& name, WallTime now) {
  const std::string text = FormatIso8601(now);
  return {.name = name,
          .state = "starting",
          .message = "starting",
          .pid = ::getpid(),
          .pid_start = ProcessStart(::getpid()),
          .started = text,
          .updated = text};
}

JobStatus QueuedStatus(const std::string& name, std::string_view scheduler, WallTime now, const JobStatus* earlier) {
  const std::string text = FormatIso8601(now);
  JobStatus status{.name = name,
                   .state = "queued",
                   .message = fmt::format("being submitted to {}", scheduler),
                   .started = text,
                   .updated = text};
  if (earlier != nullptr && earlier->state != "done") status.cost = earlier->cost;
  return status;
}

Result<fs::path> StateRoot() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (std::string root = variable("MILLRACE_STATE_DIR"); !root.empty()) return fs::path(root);
  if (std::string state = variable("XDG_STATE_HOME"); !state.empty()) return fs::path(state) / "millrace";
  if (std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".local/state/millrace";
  return Fail(Code::kInvalidArgument, "no folder for the state of jobs: set MILLRACE_STATE_DIR or HOME");
}

Result<JobFolder> JobFolder::Claim(const fs::path& root, std::string_view name) {
  fs::path path = MR_TRY(FolderOf(root, name));
  MR_TRY(OpenTrustedFolder(path, kJobRole, MissingFolder::kMake));
  UniqueFd lock = MR_TRY(OpenFile(path / "lock", O_RDWR | O_CREAT));
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    // A process that checks whether the job runs holds a shared lock for a moment. A supervisor's lock is exclusive.
    if (errno == EWOULDBLOCK && ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) {
      ::sched_yield();
      continue;
    }
    if (errno != EWOULDBLOCK) return Fail(ErrnoError(errno, fmt::format("cannot lock {}", (path / "lock").string())));
    auto running = ReadStatusFile(path);
    return Fail(Code::kBusy, "job \"{}\" already runs (process {}); `millrace job stop {}` ends it", name,
                running ? running->pid : 0, name);
  }
  JobFolder folder(std::move(path), std::move(lock));
  std::error_code error;
  fs::remove_all(folder.path() / "logs.previous", error);
  fs::rename(folder.logs(), folder.path() / "logs.previous", error);  // there may be none
  MR_TRY(MakeFolder(folder.logs()));
  MR_TRY(MakeFolder(folder.heartbeats()));
  return folder;
}

Status JobFolder::Write(const JobStatus& status) const { return WriteStatusFile(path_, status); }

Result<JobStatus> ReadJob(const fs::path& root, std::string_view name) {
  fs::path folder = MR_TRY(FolderOf(root, name));
  bool held = IsHeld(folder);  // before the status: a supervisor's last act is to write it
  auto status = ReadStatusFile(folder);
  if (!status && status.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound, "no job named \"{}\" in {}; `millrace job list` shows those there are", name,
                (root / "jobs").string());
  }
  std::error_code error;
  if (fs::exists(folder / "submission", error)) return status;  // the lock may be another machine's
  if (status && !held && status->active()) {
    status = ReadStatusFile(folder);
    if (status && status->active()) {
      status->state = "lost";
      status->message = fmt::format("its supervisor (process {}) is gone; the ranks went with it", status->pid);
    }
  }
  return status;
}

Result<std::vector<JobStatus>> ListJobs(const fs::path& root) {
  std::vector<JobStatus> jobs;
  std::error_code error;
  for (fs::directory_iterator entry(root / "jobs", error), end; !error && entry != end; entry.increment(error)) {
    if (auto status = ReadJob(root, entry->path().filename().string())) jobs.push_back(*std::move(status));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Fail(Code::kIo, "cannot list {}: {}", (root / "jobs").string(), error.message());
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobStatus& a, const JobStatus& b) { return a.name < b.name; });
  return jobs;
}

UnfinishedJob FindUnfinished(const fs::path& root, std::string_view name) {
  const auto status = ReadJob(root, name);
  if (!status || status->state == "done") return {};
  return {.exists = true, .spent = status->cost ? status->cost->spent : 0};
}

Status StopJob(const fs::path& root, std::string_view name) {
  fs::path folder = MR_TRY(FolderOf(root, name));
  JobStatus status = MR_TRY(ReadJob(root, name));
  // No other user may choose the process that gets the signal.
  MR_TRY(OpenTrustedFolder(folder, kJobRole, MissingFolder::kFail));
  if (!IsHeld(folder)) {
    return Fail(Code::kPreconditionFailed,
                "job \"{}\" does not run: it is {}; `millrace job list` shows those that run", name, status.state);
  }
  // Opens the descriptor before the check of the pid: if the pid is reused later, the descriptor still names the
  // checked process.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(status.pid), 0)));
  // The status may still be that of the previous run.
  const bool known = process && status.active() && status.pid > 1 && ProcessStart(status.pid) == status.pid_start;
  if (!known) return Fail(Code::kUnavailable, "job \"{}\" is just starting; try again", name);
  if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0) {
    return Fail(ErrnoError(errno, fmt::format("cannot signal process {}", status.pid)));
  }
  return {};
}

Status DeleteJob(const fs::path& root, std::string_view name) {
  MR_TRY(ReadJob(root, name));
  const JobFolder claimed = MR_TRY(JobFolder::Claim(root, name));
  // Under a name that no job can have. An interrupted deletion leaves no half of a job, and the next one ends it.
  const fs::path gone = root / "jobs" / fmt::format(".{}.deleted", name);
  std::error_code error;
  fs::remove_all(gone, error);
  fs::rename(claimed.path(), gone, error);
  if (!error) fs::remove_all(gone, error);
  if (error) return Fail(Code::kIo, "cannot delete {}: {}", claimed.path().string(), error.message());
  return {};
}

Result<fs::path> PrepareSubmission(const fs::path& root, std::string_view name, std::string_view job_text,
                                   const JobStatus& status) {
  const JobFolder folder = MR_TRY(JobFolder::Claim(root, name));
  std::error_code error;
  fs::remove(folder.path() / "stop", error);
  fs::remove(folder.path() / "submission", error);
  fs::remove(folder.path() / "collected", error);
  MR_TRY(WriteFileAtomic(folder.path() / "job.yaml", AsBytes(job_text)));
  MR_TRY(folder.Write(status));
  return folder.path() / "job.yaml";
}

Status NoteSubmission(const fs::path& root, std::string_view name, const Result<Submission>& submission) {
  const fs::path folder = MR_TRY(FolderOf(root, name));
  if (submission) {
    const std::string line = fmt::format("{} {}\n", submission->launcher, submission->id);
    return WriteFileAtomic(folder / "submission", AsBytes(line));
  }
  JobStatus status = MR_TRY(ReadStatusFile(folder));
  status.state = "failed";
  status.message = submission.error().ToString();
  return WriteStatusFile(folder, status);
}

Result<std::optional<Submission>> SubmissionOf(const fs::path& root, std::string_view name) {
  constexpr std::uint64_t kMaxBytes = 4096;
  const fs::path path = MR_TRY(FolderOf(root, name)) / "submission";
  const auto text = ReadFile(path, kMaxBytes);
  if (!text && text.error().code() == Code::kNotFound) return std::optional<Submission>();
  if (!text) return Fail(text.error());
  const std::string_view line = std::string_view(*text).substr(0, text->find('\n'));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return Fail(Code::kCorrupt, "{} names no scheduler and job", path.string());
  return Submission{.launcher = std::string(line.substr(0, space)), .id = std::string(line.substr(space + 1))};
}

Status NoteStatus(const fs::path& root, std::string_view name, const JobStatus& status) {
  const fs::path folder = MR_TRY(FolderOf(root, name));
  MR_TRY(OpenTrustedFolder(folder, kJobRole, MissingFolder::kFail));
  return WriteStatusFile(folder, status);
}

Status NoteStopRequest(const fs::path& root, std::string_view name) {
  const fs::path folder = MR_TRY(FolderOf(root, name));
  MR_TRY(OpenTrustedFolder(folder, kJobRole, MissingFolder::kFail));
  return WriteFileAtomic(folder / "stop", AsBytes(""));
}

Result<bool> IsStopRequested(const fs::path& root, std::string_view name) {
  std::error_code error;
  return fs::exists(MR_TRY(FolderOf(root, name)) / "stop", error);
}

Result<bool> MayRestart(const fs::path& root, std::string_view name) {
  const auto submission = MR_TRY(SubmissionOf(root, name));
  return submission && !MR_TRY(IsStopRequested(root, name));
}

}  // namespace millrace::jobs
