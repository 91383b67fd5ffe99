// Starts ranks on several machines, through whatever starts a program there and joins its input and output: srun, ssh.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/local/local_launcher.h"
#include "millrace/jobs/remote/line_buffer.h"

namespace millrace::jobs {

/// A machine of a job.
struct RemoteNode {
  std::string name;
  std::string address;               ///< by which the other machines reach it
  std::vector<std::string> command;  ///< runs `millrace job agent` there (RunNodeAgent)
};

/// Returns the last two lines of a program's standard error as one.
std::string LastWords(std::string_view words);

/// Runs an agent on each node, which starts the node's ranks; node n has the ranks from n × ranks_per_node on. Needs no
/// shared file system: the job file, the environment, lines and signs of life go through the agents' pipes. Lines are
/// appended to logs/rank-R.out and .err in `folder`.
///
/// What an agent, and the program that joins it, write to standard error goes to logs/agent-NAME.err.
///
/// If an agent ends, or says nothing for `silence`, its node is lost: its ranks count as killed by SIGKILL, and
/// RankState::cause names the node. The next Start() runs a new agent there. When this process ends, all ranks end.
/// Errors of Start(): kUnavailable if a node cannot be reached; those of `explain` and of the agent if it refuses.
/// REQUIRES: the process ignores SIGPIPE.
class RemoteLauncher final : public Launcher {
 public:
  struct Options {
    std::vector<RemoteNode> nodes;
    int ranks_per_node = 1;
    int threads = 0;                         ///< per rank; 0: as LocalLauncher chooses there
    std::string program;                     ///< of a rank; empty: millrace-train beside the agent
    std::string job;                         ///< the text of the job file
    std::map<std::string, std::string> env;  ///< for every rank
    std::filesystem::path folder;
    std::function<void(int rank, LocalLauncher::Stream, std::string_view line)> on_line;  ///< gets those of all ranks
    /// Says why a node is lost whose command has ended, given the last lines of its standard error. The code tells
    /// whether trying again may help. Nothing: kUnavailable.
    std::function<Error(const RemoteNode&, const ExitState&, std::string_view words)> explain;
    Duration start_timeout = std::chrono::seconds(60);  ///< until all nodes have started their ranks
    Duration silence = std::chrono::seconds(60);        ///< of an agent; agents speak every 5 s
  };
  explicit RemoteLauncher(Options options);
  ~RemoteLauncher() override;

  int ranks() const override { return static_cast<int>(options_.nodes.size()) * options_.ranks_per_node; }
  Status Start(int attempt) override;
  std::span<const RankState> Wait(TimePoint until, std::stop_token stop) override;
  void Signal(int signal_number) override;
  std::string ErrorTail(int rank, int lines) override;

 private:
  /// An agent that runs, and what it has answered.
  struct Agent {
    Subprocess process;
    LineBuffer lines;
    TimePoint heard;
    bool spoke = false;  ///< an event
    std::optional<int> port;
    std::optional<Error> refusal;
    bool started = false;  ///< its ranks of this attempt
  };
  struct RankLog {
    UniqueFd out, error;
    std::uint64_t error_start = 0;  ///< where this attempt begins
  };

  Status OpenLogs();
  std::filesystem::path WordsPath(std::size_t node) const;
  Status Connect(std::size_t node);
  bool Order(std::size_t node, const Json& order);
  Status Await(TimePoint until, const std::function<bool(const Agent&)>& answered, std::size_t nodes);
  void Listen(TimePoint until);
  void Hear(std::size_t node, const std::string& line);
  Status Note(std::size_t node, const Json& event);
  Error ExplainEnd(std::size_t node, const std::optional<ExitState>& ended) const;
  void Lose(std::size_t node, Error why);
  void Abandon();

  const Options options_;
  UniqueFd wake_;                             ///< an eventfd that a stop token writes to
  std::vector<std::optional<Agent>> agents_;  ///< one a node
  std::vector<std::optional<Error>> losses_;  ///< why a node's last agent is gone
  std::vector<std::uint64_t> words_start_;    ///< where the words of a node's last agent begin in its file
  std::vector<RankState> states_;
  std::vector<RankLog> logs_;
};

}  // namespace millrace::jobs
