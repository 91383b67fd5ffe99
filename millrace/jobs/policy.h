// When to start, restart, stop or kill the ranks of a job: a state machine without processes, clocks or threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/launcher.h"

namespace millrace::jobs {

/// Why an attempt came to its end.
struct Failure {
  int rank = -1;     ///< to blame; -1: none in particular
  std::string what;  ///< "rank 1 was killed by signal 9 (Killed) at step 57"
  bool hang = false;
  TimePoint at;        ///< when it was noticed
  Duration silent{0};  ///< for how long before that the rank had shown no life
};

struct Outcome {
  enum class Kind { kDone, kFailed, kInterrupted };
  Kind kind = Kind::kDone;
  std::string message;  ///< a sentence
  int exit_status = 0;  ///< for the supervisor's own process
};

/// Decides; its owner acts. Call Next with what the ranks do now, carry out the action, call Next again, at the latest
/// when `until` has come. All ranks live and die together: one failure ends the attempt, and the next one starts all of
/// them.
///
///   idle ──kStart──▶ running ──kTerminate──▶ leaving ──┐
///    ▲                  │ failure, hang        │ grace over
///    │                  └───────kKill──▶ dying ◀──kKill─┘
///    └── back-off ── all ended: restart? ──no──▶ ended (kEnd)
///
/// An attempt is fruitless if it made no step, or failed at the step at which the one before it failed. The job ends
/// after `max_restarts` restarts, after `max_fruitless` fruitless attempts in a row, and at once if a rank says before
/// any step was ever made that trying again cannot help (exit statuses 2, 4 and 5: usage, not found, access denied).
/// One owner, no locking.
class Policy {
 public:
  struct Options {
    int max_restarts = 3;
    int max_fruitless = 3;
    std::optional<Duration> hang_timeout;  ///< nothing: the larger of the next two
    Duration hang_floor = std::chrono::seconds(30);
    int hang_factor = 5;                                    ///< times the longest step seen
    Duration start_timeout = std::chrono::minutes(30);      ///< of silence before an attempt's first step
    Duration grace = std::chrono::seconds(120);             ///< from SIGTERM to SIGKILL
    Duration first_delay = std::chrono::milliseconds(250);  ///< doubled by each fruitless attempt, then jittered
    Duration longest_delay = std::chrono::seconds(30);
  };
  enum class Action { kWait, kStart, kTerminate, kKill, kEnd };
  struct Decision {
    Action action = Action::kWait;
    TimePoint until = TimePoint::max();  ///< with kWait
  };

  Policy(Options options, Random random) : options_(options), random_(random) {}

  /// After kStart the owner calls Started or StartFailed before the next Next.
  Decision Next(TimePoint now, std::span<const RankState> ranks, bool stop_requested);
  void Started(TimePoint now, int ranks);
  void StartFailed(const Error& error);

  int attempt() const { return attempt_; }  ///< from 1; 0 before the first start
  int restarts() const { return attempt_ > 0 ? attempt_ - 1 : 0; }
  /// The highest step that any attempt reached.
  std::optional<std::uint64_t> best_step() const { return best_step_; }
  /// The failure that ended, or is ending, the latest attempt; nothing while it runs well.
  const std::optional<Failure>& failure() const { return failure_; }
  /// Time from a failure to the next start.
  Duration delay() const { return delay_; }
  /// Meaningful after kEnd.
  const Outcome& outcome() const { return outcome_; }
  /// The silence that now counts as a hang, once a rank makes steps.
  Duration hang_limit() const;

 private:
  enum class State { kIdle, kRunning, kLeaving, kDying, kEnded };
  /// What is remembered of a rank between two looks.
  struct Watched {
    std::optional<std::uint64_t> step;
    std::uint64_t beats = 0;
    TimePoint life, stepped;
  };

  void Watch(TimePoint now, std::span<const RankState> ranks);
  std::optional<Failure> FindFailure(TimePoint now, std::span<const RankState> ranks) const;
  std::optional<Failure> FindSilence(TimePoint now, std::span<const RankState> ranks) const;
  TimePoint NextSilence(std::span<const RankState> ranks) const;
  Duration SilenceLimit(const Watched& rank) const;
  Decision WhileRunning(TimePoint now, std::span<const RankState> ranks, bool stop_requested);
  Decision Fail(TimePoint now, std::span<const RankState> ranks, Failure failure);
  Decision Settle(TimePoint now, std::span<const RankState> ranks);
  Decision End(Outcome outcome);
  Decision Interrupted();

  const Options options_;
  Random random_;
  State state_ = State::kIdle;
  int attempt_ = 0, fruitless_ = 0;
  TimePoint due_;                         ///< of the next start
  TimePoint kill_at_;                     ///< while leaving
  std::optional<TimePoint> finished_at_;  ///< when the first rank of this attempt ended well
  bool stopping_ = false;
  std::vector<Watched> watched_;
  std::optional<std::uint64_t> best_step_, attempt_step_, failed_step_;
  Duration longest_step_{0}, delay_{0};
  std::optional<Failure> failure_;
  Outcome outcome_;
};

}  // namespace millrace::jobs
