// A launcher for tests: its ranks follow a script on a fake clock.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/jobs/launcher.h"

namespace millrace::jobs {

/// Plays the events of a script in each attempt. Wait() advances the clock. Fails the test if an attempt starts while a
/// rank of the attempt before still runs.
class FakeLauncher final : public Launcher {
 public:
  struct Event {
    Duration after{0};  ///< since the attempt's start
    int rank = 0;
    std::optional<std::uint64_t> step;  ///< reports it, or else
    ExitState exit;                     ///< ends
  };
  using Script = std::vector<Event>;

  /// `script` yields the events of an attempt, in order of time.
  FakeLauncher(FakeClock& clock, int ranks, std::function<Script(int attempt)> script)
      : clock_(clock), ranks_(ranks), script_(std::move(script)) {}

  int ranks() const override { return ranks_; }

  Status Start(int attempt) override {
    for (const RankState& rank : states_) EXPECT_TRUE(rank.exit) << "attempt " << attempt << " overlaps the one before";
    if (start_error) return Fail(*start_error);
    ++starts;
    regroup_reason.clear();
    started_ = clock_.Now();
    start_times.push_back(started_);
    events_ = script_(attempt);
    next_ = 0;
    states_.assign(static_cast<std::size_t>(ranks_), RankState{.pid = 1000 * attempt});
    if (node_of) {
      for (int rank = 0; rank < ranks_; ++rank) states_[static_cast<std::size_t>(rank)].node = node_of(rank);
    }
    return {};
  }

  std::span<const RankState> Wait(TimePoint until, std::stop_token stop) override {
    TimePoint when = std::min(until, clock_.Now() + std::chrono::hours(1));
    if (next_ < events_.size()) when = std::min(when, started_ + events_[next_].after);
    if (leaving_at_) when = std::min(when, *leaving_at_);
    if (on_wait) on_wait();
    if (!stop.stop_requested() && when > clock_.Now()) clock_.Advance(when - clock_.Now());
    for (; next_ < events_.size() && started_ + events_[next_].after <= clock_.Now(); ++next_) Apply(events_[next_]);
    if (leaving_at_ && *leaving_at_ <= clock_.Now()) EndAll({.exit_code = 130});
    return states_;
  }

  void Signal(int signal_number) override {
    signals.push_back(signal_number);
    if (signal_number == SIGKILL) EndAll({.signal = SIGKILL});
    if (signal_number == SIGTERM && leaves_after) leaving_at_ = clock_.Now() + *leaves_after;
  }

  std::string ErrorTail(int, int) override { return "last words"; }
  std::vector<NodeState> nodes() const override { return machines; }
  bool SetAside(std::string_view node, std::string why) override {
    const auto found = std::ranges::find(machines, node, &NodeState::name);
    if (found == machines.end() || !may_set_aside) return false;
    found->use = NodeState::Use::kSetAside;
    found->reason = std::move(why);
    return true;
  }
  std::string RegroupReason() override { return regroup_reason; }
  std::string LeaveReason() override { return leave_reason; }

  /// The ranks do nothing for the time `by`: the rest of the script comes later.
  void DelayEvents(Duration by) { started_ += by; }

  std::vector<NodeState> machines;
  std::string leave_reason;
  std::string regroup_reason;  ///< until the next start
  bool may_set_aside = true;

  std::optional<Duration> leaves_after = std::chrono::seconds(2);  ///< nothing: SIGTERM is ignored
  std::optional<Error> start_error;
  std::function<void()> on_wait;
  std::function<std::string(int rank)> node_of;
  int starts = 0;
  std::vector<TimePoint> start_times;
  std::vector<int> signals;

 private:
  void Apply(const Event& event) {
    RankState& rank = states_[static_cast<std::size_t>(event.rank)];
    if (rank.exit) return;
    if (event.step) {
      rank.step = event.step;
      ++rank.beats;
    } else {
      rank.exit = event.exit;
    }
  }
  void EndAll(ExitState exit) {
    leaving_at_.reset();
    for (RankState& rank : states_) {
      if (!rank.exit) rank.exit = exit;
    }
  }

  FakeClock& clock_;
  const int ranks_;
  std::function<Script(int)> script_;
  Script events_;
  std::size_t next_ = 0;
  TimePoint started_;
  std::optional<TimePoint> leaving_at_;
  std::vector<RankState> states_;
};

}  // namespace millrace::jobs
