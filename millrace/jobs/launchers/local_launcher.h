// Starts ranks as child processes on this machine.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/launchers/log_follower.h"
#include "millrace/jobs/launchers/node_mounts.h"
#include "millrace/jobs/spec/foreign_program.h"

namespace millrace::jobs {

/// Starts the same command once per rank. Each rank has its own process group, which is killed when this process dies.
/// The environment of a rank has:
///   - RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
///     MASTER_PORT changes with each attempt.
///   - MILLRACE_RANK_SECRET, with which the ranks of one attempt know each other. Each attempt has another one. Foreign
///     programs get none, but for those that make ranks of their own (StartsRanks).
///   - OMP_NUM_THREADS, unless this process has it and `threads` is 0.
///   - MILLRACE_HEARTBEAT_FILE. A rank writes "<steps done>\n" to it after each step. Writing it again unchanged shows
///     that the rank is alive.
///   - MILLRACE_ATTEMPT, from 1.
///   - MILLRACE_LIFELINE: the number of an open descriptor, one end of a pipe. When this process ends, the other end
///     is closed. It is for programs that a rank starts, which the parent-death signal does not reach.
///   - MILLRACE_CHECKPOINTS, if a foreign program has a folder for them, and PYTHONUNBUFFERED, so that its lines come
///     when they are printed.
/// Each piece of output of a foreign program is a sign of life. Its folders are mounted before the ranks start. They
/// are unmounted when all have ended: until then the last rank seems to run. If a folder's store does not have all that
/// was written, a rank that ended well counts as failed, and RankState::cause says so. A rank writes to logs/rank-R.out
/// and logs/rank-R.err in `folder`. `on_line` also gets the lines of the first rank, or of all. An exit wakes Wait() at
/// once. Lines and heartbeats are read ten times a second.
class LocalLauncher final : public Launcher {
 public:
  enum class Stream { kOut, kError };
  /// The position of this machine's ranks in a job that has more.
  struct RankPlacement {
    int first_rank = 0;
    int world_size = 0;                        ///< 0: the ranks of this machine are all
    std::string master_address = "127.0.0.1";  ///< of the machine with rank 0
    int master_port = 0;                       ///< 0: a free one of this machine, another in each attempt
    /// The secret of the ranks of all machines. Empty: a fresh one in each attempt if all ranks are on this machine;
    /// otherwise the ranks have what this process's environment has.
    std::string rank_secret;
    /// If several launchers share a machine: how many of its ranks are before these, and how many there are; 0: these.
    int first_local_rank = 0, local_world_size = 0;
  };
  struct Options {
    std::vector<std::string> command;  ///< unless `foreign` has one
    std::optional<ForeignProgram> foreign;
    std::map<std::string, std::string> env;  ///< for every rank
    int ranks = 1;                           ///< on this machine
    RankPlacement place;
    int threads = 0;               ///< per rank; 0: the machine's cores divided by the ranks
    std::filesystem::path folder;  ///< has the folders logs and heartbeats
    bool all_lines = false;        ///< on_line gets those of all ranks of this machine
    std::function<void(int rank, Stream, std::string_view line)> on_line;
  };
  explicit LocalLauncher(Options options);
  ~LocalLauncher() override;

  int ranks() const override { return options_.ranks; }
  Status Start(int attempt) override;
  std::span<const RankState> Wait(TimePoint until, std::stop_token stop) override;
  void Signal(int signal_number) override;
  std::string ErrorTail(int rank, int lines) override;

 private:
  /// Identifies one write of a heartbeat file.
  struct HeartbeatVersion {
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
    bool operator==(const HeartbeatVersion&) const = default;
  };
  struct RankProcess {
    Subprocess process;
    std::uint64_t error_start = 0;  ///< where this attempt begins in the rank's .err file
    HeartbeatVersion beat;
    std::uint64_t written = 0;  ///< bytes of output, over all attempts
    bool ended = false;
  };
  /// The exit of the last rank, which waits until the folders are unmounted.
  struct LastExit {
    std::size_t rank = 0;
    ExitState exit;
  };
  /// The output of a rank, over all attempts.
  struct Lines {
    LogFollower out, error;
  };

  /// Ranks are counted on this machine; files and lines have the job's numbers.
  std::filesystem::path LogPath(int rank, std::string_view suffix) const;
  std::filesystem::path HeartbeatPath(int rank) const;
  /// Returns the folder with the code of a job that has run.source.
  std::filesystem::path CodeFolder() const { return options_.folder / "source"; }
  std::string RankSecret() const;
  Subprocess::Options Command(int rank, int attempt, int port, const std::string& secret, int lifeline) const;
  void Look();
  void Follow(int rank);
  void ReadHeartbeat(int rank);
  std::uint64_t OutputSize(int rank) const;
  Status PrepareFolders();
  void AwaitUnmount();

  const Options options_;
  UniqueFd wake_;      ///< an eventfd that a stop token writes to
  UniqueFd lifeline_;  ///< the end of the ranks' pipe that only this process has
  std::vector<RankProcess> children_;
  std::vector<RankState> states_;
  std::vector<Lines> lines_;            ///< of the ranks that are followed
  std::string checkpoints_;             ///< value of MILLRACE_CHECKPOINTS
  std::string made_checkpoints_;        ///< the same, if this process has made the folder
  std::unique_ptr<NodeMounts> mounts_;  ///< of a foreign program that has any
  std::optional<LastExit> last_;
};

/// Returns a port of 127.0.0.1 that no process listens on. If another process takes it before rank 0, the attempt
/// fails, and the next attempt gets another port.
Result<int> FreePort();

/// Returns a fresh secret for the ranks of an attempt.
std::string NewRankSecret();

}  // namespace millrace::jobs
