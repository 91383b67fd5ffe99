// Starts ranks on several machines, through whatever starts a program there and joins its input and output: srun, ssh.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/health/finding.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/jobs/launcher.h"
#include "millrace/jobs/launchers/line_buffer.h"
#include "millrace/jobs/launchers/local_launcher.h"
#include "millrace/jobs/launchers/node_pool.h"
#include "millrace/jobs/running_time.h"

namespace millrace::jobs {

/// A machine of a job.
struct RemoteNode {
  std::string name;
  std::string address;               ///< by which the other machines reach it
  std::vector<std::string> command;  ///< runs `millrace job agent` there (RunNodeAgent)
};

/// Returns the last two lines of a program's standard error as one.
std::string LastErrorLines(std::string_view words);

/// Runs an agent on each node, which starts the node's ranks. The node of slot n has the ranks from n × ranks_per_node
/// on. Needs no shared file system: the job file, the environment, lines and signs of life go through the agents'
/// pipes. Lines are appended to logs/rank-R.out and .err in `folder`.
///
/// What an agent, and the program that joins it, write to standard error goes to logs/agent-NAME.err.
///
/// If an agent ends, or says nothing for `silence`, its node is lost: its ranks count as killed by SIGKILL, and
/// RankState::cause names the node. Silence counts only while this process runs (RunningTime). Agents of spare nodes
/// wait. Start() first asks all agents about their machines' health; then spares take the slots of nodes that are lost
/// or unfit (NodePool). If there are too few spares, it runs new agents on lost nodes. When this process ends, all
/// ranks end.
///
/// Two generations of ranks never run at once. Each sign of life of an agent is answered; an agent that gets no answer
/// for `lease` ends its ranks by itself. Unless an agent is known to have ended, Start() waits until the lease of its
/// ranks is over.
/// Errors of Start(): kUnavailable if too few nodes can be reached and are fit; those of `explain` and of the agent if
/// it refuses.
/// REQUIRES: the process ignores SIGPIPE.
class RemoteLauncher final : public Launcher {
 public:
  struct Options {
    std::vector<RemoteNode> nodes;  ///< spares included
    /// The numbers of nodes that an attempt may have, the best one first; empty: all. Further nodes are spares.
    std::vector<int> sizes;
    int ranks_per_node = 1;
    bool one_machine = false;               ///< the nodes are parts of one machine: local ranks count over all of them
    HealthOptions health = {.checks = {}};  ///< checked before each attempt, and in part while ranks run
    int threads = 0;                        ///< per rank; 0: as LocalLauncher chooses there
    std::string program;                    ///< of a rank; empty: millrace-train beside the agent
    std::optional<ForeignProgram> foreign;  ///< runs instead of `program`
    std::string job;                        ///< the text of the job file
    /// Returns the text of the job file for another number of nodes than the best one. Needed with several `sizes`.
    std::function<Result<std::string>(int nodes)> job_on;
    /// Called once when a node has failed a health check or is set aside. May block for a short time.
    std::function<void(const std::string& node, const std::string& why)> on_bad_node;
    std::map<std::string, std::string> env;  ///< for every rank
    std::filesystem::path folder;
    std::function<void(int rank, LocalLauncher::Stream, std::string_view line)> on_line;  ///< gets those of all ranks
    /// Returns the error of a node whose command has ended, made from the last lines of its standard error. The code
    /// says whether trying again may help. Empty function: kUnavailable.
    std::function<Error(const RemoteNode&, const ExitState&, std::string_view words)> explain;
    Duration start_timeout = std::chrono::seconds(60);    ///< until all nodes have started their ranks
    Duration silence = std::chrono::seconds(20);          ///< of an agent; agents speak every 2 s
    Duration lease = std::chrono::seconds(30);            ///< how long ranks run without a word to their agent
    Duration return_interval = std::chrono::seconds(10);  ///< between looks whether a lost node is back
  };
  explicit RemoteLauncher(Options options);
  ~RemoteLauncher() override;

  int ranks() const override;
  Status Start(int attempt) override;
  std::span<const RankState> Wait(TimePoint until, std::stop_token stop) override;
  void Signal(int signal_number) override;
  std::string ErrorTail(int rank, int lines) override;
  std::vector<NodeState> nodes() const override { return pool_.states(); }
  bool SetAside(std::string_view node, std::string why) override;
  std::string RegroupReason() override;
  std::string LeaveReason() override;

 private:
  /// An agent that runs, and what it has answered.
  struct Agent {
    Subprocess process;
    LineBuffer lines;
    TimePoint last_event_at;  ///< running time
    TimePoint answered_at;    ///< the last order, or answer to a sign of life; the machine's time
    bool has_sent_event = false;
    std::optional<int> port;
    std::optional<Error> refusal;
    bool started = false;  ///< its ranks of this attempt
    std::optional<Findings> health;
  };
  struct RankLog {
    UniqueFd out, error;
    std::uint64_t error_start = 0;  ///< where this attempt begins
  };

  TimePoint RunningNow() { return running_time_.Advance(SystemClock().Now()); }
  Status OpenLogs();
  std::filesystem::path AgentErrorLog(std::size_t node) const;
  Status Connect(std::size_t node);
  bool SendOrder(std::size_t node, const Json& order);
  Error NodeLostError(std::size_t node, std::string_view why) const;
  void RequestHealth(const std::vector<std::size_t>& nodes);
  void CallNodes(const std::vector<std::size_t>& nodes);
  void UpdateNodeHealth();
  void ReportBadNode(std::size_t node);
  void LookForReturns(TimePoint now);
  Status StartRanks(int attempt);
  Status Await(TimePoint until, const std::function<bool(const Agent&)>& answered, std::span<const std::size_t> nodes);
  std::optional<std::size_t> SlotOf(std::size_t node) const;
  void ReceiveEvents(TimePoint until);
  void OnAgentLine(std::size_t node, const std::string& line);
  Status OnAgentEvent(std::size_t node, const Json& event);
  Status OnHealthEvent(std::size_t node, const Json& health);
  Error ExplainEnd(std::size_t node, const std::optional<ExitState>& ended) const;
  void SetAsideSlowNodes(std::string_view report_lines);
  void NoteLease(std::size_t node, const std::optional<ExitState>& ended);
  void AwaitLeases();
  void OnNodeLost(std::size_t node, Error why, const std::optional<ExitState>& ended = {});
  void Abandon();

  const Options options_;
  RunningTime running_time_;
  TimePoint leases_end_;                        ///< when the last rank of a lost agent ends by itself; machine's time
  UniqueFd wake_;                               ///< an eventfd that a stop token writes to
  std::vector<std::optional<Agent>> agents_;    ///< one a node
  std::vector<std::optional<Error>> losses_;    ///< why a node's last agent is gone
  std::vector<std::uint64_t> error_log_start_;  ///< where the words of a node's last agent begin in its file
  NodePool pool_;
  std::set<std::size_t> leaving_;    ///< nodes that are taken away
  std::set<std::string> bad_nodes_;  ///< that on_bad_node was called for
  TimePoint look_at_;                ///< the next look for nodes that are back
  std::string slow_node_;            ///< why ranks of this attempt are to move to a spare; empty: they are not
  std::vector<RankState> states_;
  std::vector<RankLog> logs_;
};

}  // namespace millrace::jobs
