// The states of a node's kept mounts, and every change from one to another.
//
//   Planned   the keeper has the plan, and the first daemon is starting
//   Serving   a daemon serves the mount
//   Lost      the keeper has the FUSE descriptor, and no daemon holds it: requests of programs wait
//   Gone      not in this table, and the keeper is told to forget the name
//
//   Planned ──first daemon is live──► Serving ──keeper: nobody holds it──► Lost ──next daemon is live──► Serving
//      └──────start failed──────► Gone ◄──unmounted───┘          └──given up──► Gone
//
// The keeper alone keeps states and plans while a mounter is dead: plans have secrets, so no file has them. A mounter
// fills this table from the keeper's list, again and again. Only two things make a mount Gone: its unmounting, and a
// keeper that says that it has a mount without a plan, which nobody else has either. A keeper that does not answer
// changes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/csi/mounter/daemon_plan.h"
#include "millrace/mount/daemon/session_lease.h"

namespace millrace::csi {

enum class MountPhase : std::uint8_t { kPlanned, kServing, kLost };

/// The work that follows from what a keeper lists. Each has the names at the keeper.
struct MountWork {
  std::set<std::string> kept;                                ///< mounts whose descriptor the keeper has
  std::vector<std::string> read;                             ///< read these plans: the mounter was restarted
  std::vector<std::pair<std::string, std::string>> store;    ///< name and encoded plan: the keeper was restarted
  std::vector<std::pair<std::string, std::uint64_t>> start;  ///< start their daemons; each with the start's number
  std::vector<std::string> forget;                           ///< nobody wants these: their mounter died before a daemon
  std::vector<std::string> unknown;                          ///< mounts that nobody can start again
};

/// A table of mounts, without input, output or threads of its own. Not thread-safe.
class MountStates {
 public:
  /// A new mount: Planned. Its daemon is being started. Returns the number of that start.
  std::uint64_t Plan(const std::string& name, DaemonPlan plan);
  /// Returns a number that grows with every change, for Observe(). Call before the keeper is asked.
  std::uint64_t Now() const { return changes_; }
  /// Compares the table with what the keeper listed after `asked` (of Now()), and returns what is to be done now: a few
  /// starts at a time, so that a node is not overrun. Leaves mounts alone that have changed since.
  MountWork Observe(const std::vector<mount::HeldSessionInfo>& listed, std::uint64_t asked, TimePoint now);
  /// The plan as the keeper has it. Does nothing if the table has a plan of that name, or no such mount.
  void Fill(const std::string& name, DaemonPlan plan);
  /// The plan for the next start.
  std::optional<DaemonPlan> PlanOf(const std::string& name) const;
  /// A plan with other keys. Its next start need not wait.
  void Replace(const std::string& name, DaemonPlan plan);

  /// The daemon of that start is live. Returns false if the mount is not wanted any more.
  bool Started(const std::string& name, std::uint64_t start);
  /// The start failed. A Planned mount is Gone then. A Lost one is started again after the pause that this returns.
  Duration Failed(const std::string& name, std::uint64_t start, TimePoint now);

  /// From now on, no daemon of the mount is started: it is being given up.
  void Suspend(const std::string& name);
  /// It could not be given up.
  void Resume(const std::string& name);
  /// The mount is Gone.
  void Remove(const std::string& name);

  /// Returns whether the last start of a Lost mount's daemon failed, or takes longer than `patience`.
  bool IsStuck(const std::string& name, TimePoint now, Duration patience) const;
  /// Returns the mounts that are not Planned.
  std::set<std::string> Names() const;
  std::optional<MountPhase> PhaseOf(const std::string& name) const;
  int Count(MountPhase phase) const;

 private:
  struct KeptMount {
    MountPhase phase = MountPhase::kPlanned;
    std::optional<DaemonPlan> plan;  ///< none: only the keeper has it
    std::uint64_t start = 0;         ///< the number of the start under way; 0: none is
    TimePoint began;                 ///< of that start
    std::uint64_t changed = 0;       ///< the last change that did not come from the keeper
    bool is_suspended = false;
    TimePoint retry;                ///< no start before
    std::optional<Duration> pause;  ///< after the last failure; none: the last start did not fail
  };
  KeptMount* Find(const std::string& name);
  const KeptMount* Find(const std::string& name) const;

  std::map<std::string, KeptMount> mounts_;       ///< by the names at the keeper
  std::map<std::string, TimePoint> orphans_;      ///< plans that nobody seems to want, and since when
  std::map<std::string, std::uint64_t> removed_;  ///< and when: a list that is older must not bring them back
  std::uint64_t starts_ = 0, changes_ = 0;
};

}  // namespace millrace::csi
