#include "millrace/jobs/policy.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// The longest delay between two tries to reach a machine that is away. A try costs little.
constexpr Duration kLongestWait = std::chrono::seconds(5);

bool AllEnded(std::span<const RankState> ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.exit.has_value(); });
}

/// Returns whether a rank saved and left because something asked it to. Ranks agree on that: all of them leave.
bool HasLeft(const ExitState& exit) { return exit.signal == 0 && exit.exit_code == ToExitStatus(Code::kCancelled); }

bool HasLost(const ExitState& exit) { return exit.signal == 0 && exit.exit_code == kExitLost; }

}  // namespace

/// Returns " at step 5", or that there was none.
std::string Policy::AtStep(const std::optional<std::uint64_t>& step) const {
  if (step) return fmt::format(" at step {}", *step);
  return options_.reports_steps ? " before its first step" : "";
}

/// Returns whether a restart cannot cure this failure. The statuses are those of ToExitStatus(); other programs also
/// have 2 for wrong usage.
bool Policy::CannotHelp(const ExitState& exit) const {
  if (options_.reports_steps && HasLost(exit)) return true;
  if (has_stepped_ || exit.signal != 0) return false;
  if (!options_.reports_steps) return exit.exit_code == 2 && attempt_ == 1;
  return exit.exit_code == 2 || exit.exit_code == 4 || exit.exit_code == 5;
}

void Policy::Started(TimePoint now, int ranks) {
  ++attempt_;
  state_ = State::kRunning;
  watched_.assign(static_cast<std::size_t>(ranks), Watched{.life = now, .stepped = now});
  attempt_step_.reset();
  finished_at_.reset();
  waiting_since_.reset();
  failure_.reset();
  if (regroups_now_) ++regroups_;
  regroups_now_ = false;
}

void Policy::NoteSetAside() {
  crash_loop_.ForgetNodes();
  fruitless_ = 0;
  failed_step_.reset();
}

void Policy::StartFailed(TimePoint now, const Error& error) {
  if (error.code() == Code::kUnavailable && options_.start_patience > Duration(0)) {
    if (!waiting_since_) waits_ = 0;
    waiting_since_ = waiting_since_.value_or(now);
    if (now - *waiting_since_ < options_.start_patience) {
      due_ = now + BackOff(++waits_, std::min(options_.longest_delay, kLongestWait));
      return;
    }
    waiting_since_.reset();
    End({JobOutcome::Ending::kFailed,
         fmt::format("the ranks could not be started for {}: {}", FormatDuration(options_.start_patience),
                     error.ToString()),
         ToExitStatus(error.code())});
    return;
  }
  if (error.code() == Code::kUnavailable) {
    ++attempt_;
    attempt_step_.reset();
    failure_ = Failure{.what = fmt::format("the ranks could not be started: {}", error.ToString())};
    regroups_now_ = false;
    TryAgain(now);
    outcome_.lacks_nodes = true;
    return;
  }
  End({JobOutcome::Ending::kFailed, fmt::format("the ranks cannot be started: {}", error.ToString()),
       ToExitStatus(error.code())});
}

Duration Policy::hang_limit() const {
  return options_.hang_timeout.value_or(std::max(options_.hang_floor, longest_step_ * options_.hang_factor));
}

Duration Policy::SilenceLimit(const Watched& rank) const {
  const bool lives = !options_.reports_steps && rank.beats > 0 && options_.hang_timeout.has_value();
  return rank.step || lives ? hang_limit() : std::max(options_.start_timeout, hang_limit());
}

void Policy::Watch(TimePoint now, std::span<const RankState> ranks) {
  for (std::size_t i = 0; i < ranks.size() && i < watched_.size(); ++i) {
    Watched& seen = watched_[i];
    if (ranks[i].beats != seen.beats || ranks[i].step != seen.step) seen.life = now;
    seen.beats = ranks[i].beats;
    if (!ranks[i].step || ranks[i].step == seen.step) continue;
    if (seen.step) longest_step_ = std::max(longest_step_, Duration(now - seen.stepped));  // start-up is no step
    // A rank reports the step that it begins at, too: 0, or the one of a checkpoint that an earlier attempt made.
    has_stepped_ = has_stepped_ || *ranks[i].step > seen.step.value_or(best_step_.value_or(0));
    seen.step = ranks[i].step;
    seen.stepped = now;
    attempt_step_ = std::max(attempt_step_.value_or(0), *seen.step);
    best_step_ = std::max(best_step_.value_or(0), *seen.step);
  }
}

/// Finds a rank that failed. After one rank dies, others may exit with an error before the next check. So a rank that a
/// signal killed is blamed first, and one that left last. While others may still save, a rank that left is no failure.
std::optional<Failure> Policy::FindFailure(std::span<const RankState> ranks) const {
  const auto weight = [](const RankState& rank) {
    return rank.exit->signal != 0 || !rank.cause.empty() ? 2 : HasLeft(*rank.exit) ? 0 : 1;
  };
  const bool all_ended = AllEnded(ranks);
  const RankState* blamed = nullptr;
  for (const RankState& rank : ranks) {
    if (!rank.exit || rank.exit->ok() || (weight(rank) == 0 && !all_ended)) continue;
    if (blamed == nullptr || weight(rank) > weight(*blamed)) blamed = &rank;
  }
  if (blamed == nullptr) return std::nullopt;
  int index = static_cast<int>(blamed - ranks.data());
  if (!blamed->cause.empty()) {
    return Failure{.rank = index,
                   .what = fmt::format("{}, with rank {}{}", blamed->cause, index, AtStep(blamed->step))};
  }
  if (HasLeft(*blamed->exit)) {
    return Failure{
        .rank = index,
        .what = fmt::format("the ranks saved and left{}, because one of them was asked to", AtStep(blamed->step))};
  }
  if (options_.reports_steps && HasLost(*blamed->exit)) {
    return Failure{.rank = index,
                   .what = fmt::format("another run saves to the same checkpoint.url{}", AtStep(blamed->step)),
                   .node = blamed->node};
  }
  std::string how = blamed->exit->signal != 0 ? fmt::format("was {}", blamed->exit->ToString())
                                              : fmt::format("ended with {}", blamed->exit->ToString());
  return Failure{
      .rank = index, .what = fmt::format("rank {} {}{}", index, how, AtStep(blamed->step)), .node = blamed->node};
}

std::optional<Failure> Policy::FindSilence(TimePoint now, std::span<const RankState> ranks) const {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Duration silent = now - watched_[i].life;
    if (ranks[i].exit || silent < SilenceLimit(watched_[i])) continue;
    return Failure{.rank = static_cast<int>(i),
                   .what = fmt::format("rank {} has shown no sign of life for {}{}", i, FormatDuration(silent),
                                       AtStep(ranks[i].step)),
                   .node = ranks[i].node,
                   .hang = true,
                   .silent = silent};
  }
  if (finished_at_ && now - *finished_at_ >= options_.grace) {
    return Failure{
        .what = fmt::format("some ranks still ran {} after others had finished", FormatDuration(now - *finished_at_)),
        .hang = true};
  }
  return std::nullopt;
}

TimePoint Policy::NextSilence(std::span<const RankState> ranks) const {
  TimePoint next = finished_at_ ? *finished_at_ + options_.grace : TimePoint::max();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].exit) next = std::min(next, watched_[i].life + SilenceLimit(watched_[i]));
  }
  return next;
}

Policy::Decision Policy::Next(TimePoint now, std::span<const RankState> ranks, bool stop_requested) {
  stop_requested = stop_requested || !end_reason_.empty();
  switch (state_) {
    case State::kIdle:
      if (stop_requested) return Interrupted();
      if ((attempt_ > 0 || waiting_since_) && now < due_) return {.until = due_};
      return {.action = Action::kStart};
    case State::kRunning:
      Watch(now, ranks);
      return WhileRunning(now, ranks, stop_requested);
    case State::kLeaving:
      if (stop_requested) stopping_ = true;
      Watch(now, ranks);
      if (AllEnded(ranks)) return Settle(now, ranks);
      if (now < kill_at_) return {.until = kill_at_};
      state_ = State::kDying;
      return {.action = Action::kKill};
    case State::kDying:
      Watch(now, ranks);
      if (AllEnded(ranks)) return Settle(now, ranks);
      return {};
    case State::kEnded:
      break;
  }
  return {.action = Action::kEnd};
}

Policy::Decision Policy::WhileRunning(TimePoint now, std::span<const RankState> ranks, bool stop_requested) {
  if (auto failure = FindFailure(ranks)) return Fail(now, ranks, *std::move(failure));
  if (AllEnded(ranks)) return Settle(now, ranks);
  if (stop_requested || regroups_now_) {
    stopping_ = stop_requested;
    regroups_now_ = !stop_requested;
    state_ = State::kLeaving;
    kill_at_ = now + options_.grace;
    return {.action = Action::kTerminate};
  }
  bool some_finished = std::any_of(ranks.begin(), ranks.end(), [](const RankState& r) { return r.exit.has_value(); });
  if (some_finished && !finished_at_) finished_at_ = now;
  if (auto failure = FindSilence(now, ranks)) return Fail(now, ranks, *std::move(failure));
  return {.until = NextSilence(ranks)};
}

/// Kills the other ranks. They wait in a collective for the failed rank, so they cannot save a complete checkpoint.
Policy::Decision Policy::Fail(TimePoint now, std::span<const RankState> ranks, Failure failure) {
  failure_ = std::move(failure);
  regroups_now_ = false;
  if (AllEnded(ranks)) return Settle(now, ranks);
  state_ = State::kDying;
  return {.action = Action::kKill};
}

Policy::Decision Policy::Settle(TimePoint now, std::span<const RankState> ranks) {
  if (stopping_) return Interrupted();
  if (regroups_now_) {
    delay_ = Duration(0);
    due_ = now;
    state_ = State::kIdle;
    return {.until = now};
  }
  if (!failure_) return End({JobOutcome::Ending::kDone, "all ranks finished", 0});

  const std::optional<ExitState> exit =
      failure_->rank >= 0 ? ranks[static_cast<std::size_t>(failure_->rank)].exit : std::nullopt;
  if (exit && CannotHelp(*exit)) {
    return End({JobOutcome::Ending::kFailed, failure_->what + "; starting it again would not help", exit->exit_code});
  }
  return TryAgain(now);
}

/// After failure_: goes back to kIdle until the next start is due, or ends the job.
Policy::Decision Policy::TryAgain(TimePoint now) {
  const bool fruitless = !attempt_step_ || attempt_step_ == failed_step_;
  fruitless_ = fruitless ? fruitless_ + 1 : 0;
  failed_step_ = attempt_step_;
  crash_loop_.RecordAttempt({.step = attempt_step_, .node = failure_->node, .fruitless = fruitless});
  if (restarts() >= options_.max_restarts) {
    return End({JobOutcome::Ending::kFailed,
                fmt::format("{}; no restart is left of run.max_restarts = {}", failure_->what, options_.max_restarts),
                1});
  }
  if (fruitless_ >= options_.max_fruitless && (options_.reports_steps || best_step_)) {
    return End({JobOutcome::Ending::kFailed,
                fmt::format("{}; {} attempts in a row made no progress: {}", failure_->what, fruitless_,
                            crash_loop_.Explain()),
                1});
  }
  delay_ = BackOff(fruitless_, options_.longest_delay);
  due_ = now + delay_;
  state_ = State::kIdle;
  return {.until = due_};
}

/// Returns the delay after `failures` failures in a row.
Duration Policy::BackOff(int failures, Duration longest) {
  Duration delay = options_.first_delay;
  for (int i = 0; i < failures && delay < longest; ++i) delay *= 2;
  delay = std::min(delay, longest);
  return delay / 2 + Duration(random_.Below(static_cast<std::uint64_t>(delay.count()) / 2 + 1));
}

Policy::Decision Policy::Interrupted() {
  if (!end_reason_.empty()) {
    return End({.ending = JobOutcome::Ending::kInterrupted,
                .message = fmt::format("{}; stopped {}", end_reason_,
                                       best_step_ ? fmt::format("at step {}", *best_step_) : "before the first step"),
                .exit_status = may_return_ ? ToExitStatus(Code::kCancelled) : 1,
                .may_return = may_return_});
  }
  return End({JobOutcome::Ending::kInterrupted,
              best_step_ ? fmt::format("stopped at step {}; {} continues from the last checkpoint", *best_step_,
                                       options_.command)
              : options_.reports_steps ? "stopped before the first step"
                                       : fmt::format("stopped; {} starts it again", options_.command),
              ToExitStatus(Code::kCancelled)});
}

Policy::Decision Policy::End(JobOutcome outcome) {
  outcome_ = std::move(outcome);
  state_ = State::kEnded;
  return {.action = Action::kEnd};
}

}  // namespace millrace::jobs
