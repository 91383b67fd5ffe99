// The interface that starts, watches and signals the ranks of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// The state of one rank.
struct RankState {
  std::int64_t pid = 0;               ///< 0 if the launcher has no process for it
  std::optional<ExitState> exit;      ///< nothing: it runs
  std::optional<std::uint64_t> step;  ///< the last step it reported in this attempt; nothing: it is still starting
  std::uint64_t beats = 0;            ///< the number of heartbeats in this attempt
  std::string node;                   ///< the machine's name; empty: this machine
  std::string cause;                  ///< of its exit, if that is not the rank's own: "node n3 is lost: …"
  std::string report_lines;           ///< the lines behind the step in its heartbeat file; see README.md
};

/// A machine of a job, as its launcher uses it.
struct NodeState {
  enum class Use {
    kRuns,      ///< has ranks of the latest attempt
    kSpare,     ///< is ready to take another's place
    kLost,      ///< cannot be reached
    kUnfit,     ///< failed a health check
    kSetAside,  ///< has no ranks any more, because it failed too often or its network is slow
  };
  std::string name;
  Use use = Use::kSpare;
  std::string reason;                 ///< of the last three uses, a sentence: "node n3 is lost: …"
  std::vector<std::string> warnings;  ///< of its health checks
  bool operator==(const NodeState&) const = default;
};

/// Starts all ranks of a job and reports their states. One owner thread, which must live as long as ranks run: local
/// ranks, and what connects to others, are killed when the thread that started them ends. The destructor kills and
/// reaps running ranks.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual int ranks() const = 0;
  /// Starts every rank, or none: if it fails, no rank runs. `attempt` counts from 1. Errors: kUnavailable if trying
  /// again may help.
  /// REQUIRES: no rank runs.
  virtual Status Start(int attempt) = 0;
  /// Blocks until a rank has ended or sent a heartbeat, `until` has passed or `stop` fires. May return sooner. Returns
  /// every rank's state, valid until the next call; none before the first Start().
  virtual std::span<const RankState> Wait(TimePoint until, std::stop_token stop) = 0;
  /// Sends a signal to every rank that still runs.
  virtual void Signal(int signal_number) = 0;
  /// Returns the last lines that a rank wrote to standard error in this attempt. They are shown with its failure.
  virtual std::string ErrorTail(int rank, int lines) = 0;

  /// Returns the state of all machines; none if there is only this one.
  virtual std::vector<NodeState> nodes() const { return {}; }
  /// Keeps a machine from all later attempts. Returns false, and does nothing, if there is no other in its place.
  virtual bool SetAside(std::string_view node, std::string why) {
    static_cast<void>(node);
    static_cast<void>(why);
    return false;
  }
  /// Returns why the ranks should save, end and start again on other machines: a sentence. "": they should not.
  virtual std::string RegroupReason() { return ""; }
  /// Returns why the ranks should save and end, to go on later: a sentence. "": they should not.
  virtual std::string LeaveReason() { return ""; }
};

}  // namespace millrace::jobs
