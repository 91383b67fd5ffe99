// What is kept on disk of a running job, so that other processes can see, follow and stop it.
//
//   ROOT/jobs/NAME/lock             held (flock) by the supervisor as long as it lives
//                  status.json      replaced as a whole; see Status
//                  job.yaml         the job as it runs: rendered, overrides included
//                  logs/rank-R.out  and .err: what rank R wrote, over all attempts of the latest run
//                  logs.previous/   those of the run before
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

/// The start time of a process as in JobStatus::pid_start; 0 when there is no such process.
std::uint64_t ProcessStart(std::int64_t pid);

/// A job as `millrace job status` shows it.
struct JobStatus {
  struct Rank {
    std::int64_t pid = 0;
    std::string state;  ///< "running", "exit status 0", "killed by signal 9 (Killed)"
    std::optional<std::uint64_t> step;
    bool operator==(const Rank&) const = default;
  };
  std::string name;
  std::string state;     ///< starting | running | restarting | stopping | done | failed | interrupted | lost
  std::string message;   ///< the last thing that happened, a sentence
  std::int64_t pid = 0;  ///< the supervisor's
  /// When process `pid` started, in clock ticks since the machine's start: tells it from a later process with the same
  /// number. 0: unknown.
  std::uint64_t pid_start = 0;
  int attempt = 0, restarts = 0;
  std::optional<std::uint64_t> step;  ///< the highest reached
  std::string started, updated;       ///< ISO 8601
  std::vector<Rank> ranks;

  /// The state is one from which a job moves on by itself.
  bool active() const;
  Json ToJson() const;
  static Result<JobStatus> FromJson(const Json& json, std::string_view what);
  bool operator==(const JobStatus&) const = default;
};

/// $MILLRACE_STATE_DIR, else $XDG_STATE_HOME/millrace, else ~/.local/state/millrace.
Result<std::filesystem::path> StateRoot();

/// The folder of one job. The supervisor claims it; everybody else only reads.
class JobFolder {
 public:
  /// Makes the folder, takes its lock and puts the logs of the run before aside. Fails with kBusy while another
  /// supervisor has it, naming its process.
  static Result<JobFolder> Claim(const std::filesystem::path& root, std::string_view name);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path logs() const { return path_ / "logs"; }
  std::filesystem::path heartbeats() const { return path_ / "heartbeats"; }
  /// Readers see the old status or the new one. Not fsynced: it describes processes, which a power failure ends too.
  Status Write(const JobStatus& status) const;

 private:
  JobFolder(std::filesystem::path path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  UniqueFd lock_;
};

/// The status of a job; "lost" where it was left active by a supervisor that is gone. kNotFound when there is none.
Result<JobStatus> ReadJob(const std::filesystem::path& root, std::string_view name);
/// All of them by name. Folders without a readable status are left out.
Result<std::vector<JobStatus>> ListJobs(const std::filesystem::path& root);
/// Asks the supervisor to stop (SIGTERM). Does not wait. Errors: kPreconditionFailed when none runs; kUnavailable while
/// one is starting, whose process is not known yet: try again. Signals no other process.
Status StopJob(const std::filesystem::path& root, std::string_view name);

}  // namespace millrace::jobs
