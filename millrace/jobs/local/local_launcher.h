// Ranks as child processes of this one, on this machine.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/local/log_follower.h"

namespace millrace::jobs {

/// Starts the same command once a rank, each in a process group of its own that dies with this process, with
///   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT     as torch.distributed reads them; the port
///   is
///                                                                           chosen afresh for each attempt
///   OMP_NUM_THREADS                                                         unless this process has it and threads is
///   0 MILLRACE_HEARTBEAT_FILE   which a rank rewrites with "<steps done>\n" after each step, or untouched to show life
///   MILLRACE_ATTEMPT          from 1
///   MILLRACE_LIFELINE         number of an open descriptor: the end of a pipe that is closed when this process ends,
///                             for programs that a rank's process starts (the parent-death signal does not reach them)
/// A rank writes to logs/rank-R.out and logs/rank-R.err in `folder`; those of rank 0 are also handed on line by line.
/// An exit wakes Wait at once; lines and heartbeats are looked at ten times a second.
class LocalLauncher final : public Launcher {
 public:
  enum class Stream { kOut, kError };
  struct Options {
    std::vector<std::string> command;
    std::map<std::string, std::string> env;  ///< for every rank
    int ranks = 1;
    int threads = 0;               ///< per rank; 0: the machine's cores divided by the ranks
    std::filesystem::path folder;  ///< with folders logs and heartbeats
    std::function<void(Stream, std::string_view line)> on_line;  ///< of rank 0
  };
  explicit LocalLauncher(Options options);
  ~LocalLauncher() override;

  int ranks() const override { return options_.ranks; }
  Status Start(int attempt) override;
  std::span<const RankState> Wait(TimePoint until, std::stop_token stop) override;
  void Signal(int signal_number) override;
  std::string ErrorTail(int rank, int lines) override;

 private:
  /// What identifies one writing of a heartbeat file.
  struct Beat {
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
    bool operator==(const Beat&) const = default;
  };
  struct Rank {
    Subprocess process;
    std::uint64_t error_start = 0;  ///< of this attempt in the rank's .err file
    Beat beat;
  };

  std::filesystem::path LogPath(int rank, std::string_view suffix) const;
  std::filesystem::path HeartbeatPath(int rank) const;
  Subprocess::Options Command(int rank, int attempt, int port, int lifeline) const;
  void Look();
  void ReadHeartbeat(int rank);

  const Options options_;
  UniqueFd wake_;      ///< an eventfd that a stop token writes to
  UniqueFd lifeline_;  ///< the end of the ranks' pipe that nobody else has
  std::vector<Rank> children_;
  std::vector<RankState> states_;
  LogFollower out_, error_;
};

}  // namespace millrace::jobs
