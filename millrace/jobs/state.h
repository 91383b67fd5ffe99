// The files of a running job, by which other processes can see, follow and stop it.
//
//   ROOT/jobs/NAME/lock             held (flock) by the supervisor as long as it lives
//                  status.json      replaced as a whole; see Status
//                  submission       the scheduler that the job was submitted to, and its id there; else absent
//                  stop             made by `job stop`: the scheduler is not to start the job again
//                  job.yaml         the job as it runs: rendered, overrides included
//                  logs/rank-R.out  and .err: what rank R wrote, over all attempts of the latest run
//                  logs.previous/   those of the run before
//                  history.json     what the run did (millrace/history), by rank 0
//                  metrics.json     what log.metric_definitions found, by the supervisor
//                  report.html      a page about it, and logs/events.jsonl, by the supervisor
//                  heartbeats/      one file a rank: the last step it finished
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// Returns the start time of a process as in JobStatus::pid_start, or 0 if there is no such process.
std::uint64_t ProcessStart(std::int64_t pid);

/// A job as `millrace job status` shows it.
struct JobStatus {
  struct Rank {
    std::int64_t pid = 0;
    std::string state;  ///< "running", "exit status 0", "killed by signal 9 (Killed)"
    std::optional<std::uint64_t> step;
    std::string node;  ///< its machine; empty: the supervisor's
    bool operator==(const Rank&) const = default;
  };
  /// A machine of a job that has several.
  struct Node {
    std::string name;
    std::string state;  ///< "runs", "spare", "lost", "unfit", "set aside"
    std::string reason;
    bool operator==(const Node&) const = default;
  };
  struct Cost {
    double spent = 0;  ///< with earlier runs of the same job
    std::string currency;
    bool operator==(const Cost&) const = default;
  };
  std::string name;
  std::string state;     ///< queued | starting | running | restarting | stopping | done | failed | interrupted | lost |
                         ///< unknown: its scheduler does not answer
  std::string message;   ///< the last thing that happened, a sentence
  std::int64_t pid = 0;  ///< the supervisor's
  /// The start time of process `pid`, in clock ticks since the machine's start. It distinguishes the process from a
  /// later one with the same number. 0: unknown.
  std::uint64_t pid_start = 0;
  int attempt = 0, restarts = 0;
  std::optional<std::uint64_t> step;  ///< the highest reached
  std::string started, updated;       ///< ISO 8601
  std::vector<Rank> ranks;
  std::vector<Node> nodes;
  std::optional<Cost> cost;  ///< nothing: its price is unknown

  /// Returns whether the job is still running or about to: its supervisor changes the state.
  bool active() const;
  Json ToJson() const;
  static Result<JobStatus> FromJson(const Json& json, std::string_view what);
  bool operator==(const JobStatus&) const = default;
};

/// Returns the status of a job whose supervisor is this process and has started no rank yet.
JobStatus StartingStatus(const std::string& name, WallTime now);

/// Returns the status of a job that a scheduler is about to get. `earlier`: the last run of a job of this name; null:
/// none. What it has cost counts on, unless it is done.
JobStatus QueuedStatus(const std::string& name, std::string_view scheduler, WallTime now, const JobStatus* earlier);

/// $MILLRACE_STATE_DIR, else $XDG_STATE_HOME/millrace, else ~/.local/state/millrace.
Result<std::filesystem::path> StateRoot();

/// The folder of one job. Its supervisor claims and writes it. Other processes only read it.
class JobFolder {
 public:
  /// Makes the folder, takes its lock and moves the logs of the run before to logs.previous.
  /// Errors: kBusy while another supervisor has the folder; the message names its process.
  static Result<JobFolder> Claim(const std::filesystem::path& root, std::string_view name);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path logs() const { return path_ / "logs"; }
  std::filesystem::path heartbeats() const { return path_ / "heartbeats"; }
  /// Replaces the status. Readers see either the old or the new one. There is no fsync: after a power failure the
  /// processes are gone, too.
  Status Write(const JobStatus& status) const;

 private:
  JobFolder(std::filesystem::path path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  UniqueFd lock_;
};

/// Returns the status of a job. The state is "lost" if it was active and its supervisor is gone. Of a job of a
/// scheduler, it is the last that the supervisor wrote; the scheduler knows more. Errors: kNotFound.
Result<JobStatus> ReadJob(const std::filesystem::path& root, std::string_view name);
/// Returns the status of all jobs, sorted by name. Leaves out folders without a readable status.
Result<std::vector<JobStatus>> ListJobs(const std::filesystem::path& root);
/// The remains of earlier runs of a job that has not come to its end.
struct UnfinishedJob {
  bool exists = false;
  double spent = 0;  ///< what they have cost
};
UnfinishedJob FindUnfinished(const std::filesystem::path& root, std::string_view name);
/// Asks the supervisor to stop (SIGTERM). Does not wait. Signals no other process.
/// Errors: kPreconditionFailed if none runs; kUnavailable while one is starting and its process is not known yet (try
/// again).
Status StopJob(const std::filesystem::path& root, std::string_view name);

/// Deletes the folder of a job, with its logs. What the job wrote to buckets stays.
/// Errors: kNotFound; kBusy while a supervisor has the folder.
Status DeleteJob(const std::filesystem::path& root, std::string_view name);

/// The place to which a job was submitted.
struct Submission {
  std::string launcher;  ///< as run.launcher
  std::string id;        ///< of the job there
};

/// Writes the job file of a job that a scheduler is about to get, and its status: queued. Returns the file's path.
/// Errors: kBusy if a supervisor has the folder.
Result<std::filesystem::path> PrepareSubmission(const std::filesystem::path& root, std::string_view name,
                                                std::string_view job_text, const JobStatus& status);
/// Notes what the submission became, or why it failed.
Status NoteSubmission(const std::filesystem::path& root, std::string_view name, const Result<Submission>& submission);
/// Returns where the job was submitted to; nothing if it was not.
Result<std::optional<Submission>> SubmissionOf(const std::filesystem::path& root, std::string_view name);
/// Replaces the status of a job whose supervisor cannot write here, because it runs in a cluster.
Status NoteStatus(const std::filesystem::path& root, std::string_view name, const JobStatus& status);
/// Keeps the supervisor of a scheduler's job from putting it back into the queue when it is interrupted.
Status NoteStopRequest(const std::filesystem::path& root, std::string_view name);
/// Returns whether that was done since the job was submitted.
Result<bool> IsStopRequested(const std::filesystem::path& root, std::string_view name);
/// Returns whether a scheduler may restart an interrupted job. False after `job stop`, and for a job that no scheduler
/// has.
Result<bool> MayRestart(const std::filesystem::path& root, std::string_view name);

}  // namespace millrace::jobs
