// Decides when to start, restart, stop or kill the ranks of a job: a state machine without processes, clocks or
// threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/crash_loop.h"
#include "millrace/jobs/launcher.h"

namespace millrace::jobs {

/// The reason for which an attempt failed.
struct Failure {
  int rank = -1;     ///< the rank that failed; -1: none in particular
  std::string what;  ///< "rank 1 was killed by signal 9 (Killed) at step 57"
  std::string node;  ///< of that rank, unless the node itself was lost; empty: this machine
  bool hang = false;
  Duration silent{0};  ///< the time since the rank's last heartbeat
};

/// The exit status of a rank whose run must not go on, because another run saves to its checkpoint.url.
inline constexpr int kExitLost = 6;

/// The end of a job.
struct JobOutcome {
  enum class Ending { kDone, kFailed, kInterrupted };
  Ending ending = Ending::kDone;
  std::string message;       ///< a sentence
  int exit_status = 0;       ///< of the supervisor's own process
  bool may_return = true;    ///< an interrupted job may go on by itself, when a scheduler starts it again
  bool lacks_nodes = false;  ///< the job failed because too few machines were ready

  /// Returns whether the job goes on where a scheduler starts it again.
  bool goes_on() const { return ending == Ending::kInterrupted ? may_return : lacks_nodes; }
};

/// Decides, and its owner acts. All times are of the owner's running time (RunningTime). Call Next() with the states of
/// the ranks, carry out the action, and call Next() again, at Decision::until at the latest. All ranks start and end
/// together: one failure ends the attempt, and the next attempt starts all ranks.
///
///   idle ──kStart──▶ running ──kTerminate──▶ leaving ──┐
///    ▲                  │ failure, hang        │ grace over
///    │                  └───────kKill──▶ dying ◀──kKill─┘
///    └── back-off ── all ended: restart? ──no──▶ ended (kEnd)
///
/// An attempt is fruitless if it made no step, or failed at the same step as the attempt before. The job ends after
/// `max_restarts` restarts or `max_fruitless` fruitless attempts in a row, and says what these have in common. It ends
/// at once if, before the job's first step, a rank exits with 2, 4 or 5 (usage, not found, access denied), or at any
/// time with kExitLost: trying again cannot help.
///
/// A program of the user's own need not report steps (`reports_steps` is false). Until it reports one, its attempts do
/// not count as fruitless. A hang_timeout that is given counts from its first sign of life. Only exit status 2 in the
/// first attempt ends the job at once.
///
/// One owner, no locking.
class Policy {
 public:
  struct Options {
    int max_restarts = 3;
    int max_fruitless = 3;
    bool reports_steps = true;             ///< false: a program that need not report steps
    std::optional<Duration> hang_timeout;  ///< nothing: the larger of hang_floor and hang_factor × longest step
    Duration hang_floor = std::chrono::seconds(30);
    int hang_factor = 5;
    Duration start_timeout = std::chrono::minutes(30);      ///< without a heartbeat, before an attempt's first step
    Duration grace = std::chrono::seconds(120);             ///< from SIGTERM to SIGKILL: time to save a checkpoint
    Duration first_delay = std::chrono::milliseconds(250);  ///< doubled by each fruitless attempt, then jittered
    Duration longest_delay = std::chrono::seconds(30);
    /// How long machines may be away. Meanwhile starts that fail with kUnavailable are tried again every few seconds.
    /// They are no attempts. 0: each is an attempt.
    Duration start_patience{0};
    std::string command = "the same command";  ///< what continues a job that was stopped, in the words for a user
    std::uint64_t sequences_per_step = 0;      ///< to name the data of a step that fails each time; 0: unknown
  };
  enum class Action { kWait, kStart, kTerminate, kKill, kEnd };
  struct Decision {
    Action action = Action::kWait;
    TimePoint until = TimePoint::max();  ///< with kWait
  };

  Policy(Options options, Random random)
      : options_(options), random_(random), crash_loop_(options.sequences_per_step) {}

  /// Returns the next action. After kStart, call Started() or StartFailed() before the next call.
  Decision Next(TimePoint now, std::span<const RankState> ranks, bool stop_requested);
  void Started(TimePoint now, int ranks);
  /// Other errors than kUnavailable end the job. kUnavailable counts as an attempt that failed; with
  /// Options::start_patience, starts are tried again for so long, and then the job ends.
  void StartFailed(TimePoint now, const Error& error);

  /// Lets the ranks save and leave, and starts the next attempt at once. That is no failure and no restart. Does
  /// nothing unless ranks run well.
  void Regroup() { regroups_now_ = regroups_now_ || state_ == State::kRunning; }
  /// Returns whether ranks leave, or the next attempt waits, because of Regroup().
  bool regrouping() const { return regroups_now_; }
  /// Ends the job as if a stop were requested: `reason` is a sentence. `may_return`: it goes on when something starts
  /// it again. The first call counts.
  void EndBecause(std::string reason, bool may_return) {
    if (!end_reason_.empty()) return;
    end_reason_ = std::move(reason);
    may_return_ = may_return;
  }
  /// Returns the node that the latest failures point at, which should be set aside; "" if there is none. Changes when
  /// an attempt has failed and all its ranks have ended.
  std::string suspect() const { return crash_loop_.Suspect(); }
  /// The suspect was set aside: the failures there do not count any more.
  void NoteSetAside();

  int attempt() const { return attempt_; }  ///< from 1; 0 before the first start
  int restarts() const { return attempt_ > 0 ? attempt_ - 1 - regroups_ : 0; }
  /// Returns the highest step that any attempt reached.
  std::optional<std::uint64_t> best_step() const { return best_step_; }
  /// Returns the failure that ended, or is ending, the latest attempt. Nothing while it runs well.
  const std::optional<Failure>& failure() const { return failure_; }
  /// Returns whether the last start failed and is to be tried again as the same attempt.
  bool waiting() const { return waiting_since_.has_value(); }
  /// Returns the back-off time from a failure to the next start.
  Duration delay() const { return delay_; }
  /// REQUIRES: Next() has returned kEnd.
  const JobOutcome& outcome() const { return outcome_; }
  /// Returns the time without a heartbeat that counts as a hang, once a rank makes steps.
  Duration hang_limit() const;

 private:
  enum class State { kIdle, kRunning, kLeaving, kDying, kEnded };
  /// The state of a rank at the last call of Next().
  struct Watched {
    std::optional<std::uint64_t> step;
    std::uint64_t beats = 0;
    TimePoint life, stepped;
  };

  void Watch(TimePoint now, std::span<const RankState> ranks);
  std::optional<Failure> FindFailure(std::span<const RankState> ranks) const;
  std::optional<Failure> FindSilence(TimePoint now, std::span<const RankState> ranks) const;
  TimePoint NextSilence(std::span<const RankState> ranks) const;
  Duration SilenceLimit(const Watched& rank) const;
  bool CannotHelp(const ExitState& exit) const;
  std::string AtStep(const std::optional<std::uint64_t>& step) const;
  Decision WhileRunning(TimePoint now, std::span<const RankState> ranks, bool stop_requested);
  Decision Fail(TimePoint now, std::span<const RankState> ranks, Failure failure);
  Decision Settle(TimePoint now, std::span<const RankState> ranks);
  Decision TryAgain(TimePoint now);
  Duration BackOff(int failures, Duration longest);
  Decision End(JobOutcome outcome);
  Decision Interrupted();

  const Options options_;
  Random random_;
  State state_ = State::kIdle;
  int attempt_ = 0, fruitless_ = 0, regroups_ = 0;
  bool regroups_now_ = false;
  bool has_stepped_ = false;  ///< a rank of this or an earlier attempt made a step
  std::string end_reason_;
  bool may_return_ = true;  ///< with end_reason_
  CrashLoop crash_loop_;
  TimePoint due_;                           ///< the time of the next start
  TimePoint kill_at_;                       ///< in kLeaving: the end of the grace time
  std::optional<TimePoint> waiting_since_;  ///< the first of the failed starts that are being tried again
  int waits_ = 0;                           ///< the number of these starts
  std::optional<TimePoint> finished_at_;    ///< when the first rank of this attempt ended without error
  bool stopping_ = false;
  std::vector<Watched> watched_;
  std::optional<std::uint64_t> best_step_, attempt_step_, failed_step_;
  Duration longest_step_{0}, delay_{0};
  std::optional<Failure> failure_;
  JobOutcome outcome_;
};

}  // namespace millrace::jobs
