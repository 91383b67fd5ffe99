// Records what a thread did when. A wait for the thread's work can then be divided by cause.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/data/batch/load_stage.h"

namespace millrace::data {

/// The stages of one batch. One thread at a time.
class StageTrace {
 public:
  explicit StageTrace(const Clock& clock = SystemClock()) : clock_(&clock) {}

  /// Begins `stage`, which lasts until the next call. Returns the stage before.
  LoadStage Enter(LoadStage stage) {
    LoadStage before = now_;
    if (stage != before || marks_.empty()) marks_.push_back({clock_->Now(), stage});
    now_ = stage;
    return before;
  }

  /// Calls `visit(stage, begin, end)` for each stage up to `until`, in order.
  template <class Visit>
  void ForEach(TimePoint until, Visit&& visit) const {
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      visit(marks_[i].stage, marks_[i].since, i + 1 < marks_.size() ? marks_[i + 1].since : until);
    }
  }

  /// Returns the time between `from` and `to` by stage. Time before the first Enter counts as kPack.
  std::array<Duration, kLoadStages> Within(TimePoint from, TimePoint to) const {
    std::array<Duration, kLoadStages> spent{};
    TimePoint at = from;
    LoadStage stage = LoadStage::kPack;
    for (const Mark& mark : marks_) {
      TimePoint until = std::clamp(mark.since, at, std::max(at, to));
      spent[static_cast<std::size_t>(stage)] += until - at;
      at = until;
      stage = mark.stage;
    }
    spent[static_cast<std::size_t>(stage)] += std::max(at, to) - at;
    return spent;
  }

 private:
  struct Mark {
    TimePoint since;
    LoadStage stage;
  };
  const Clock* clock_;
  LoadStage now_ = LoadStage::kPack;
  std::vector<Mark> marks_;
};

/// Enters a stage for a scope, and returns to the stage before at its end. Does nothing without a trace.
class ScopedStage {
 public:
  ScopedStage(StageTrace* trace, LoadStage stage) : trace_(trace) {
    if (trace_) before_ = trace_->Enter(stage);
  }
  ~ScopedStage() {
    if (trace_) trace_->Enter(before_);
  }
  ScopedStage(const ScopedStage&) = delete;
  ScopedStage& operator=(const ScopedStage&) = delete;

 private:
  StageTrace* const trace_;
  LoadStage before_ = LoadStage::kPack;
};

}  // namespace millrace::data
