// What a thread did when, so that a wait for its work can be told apart afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/data/loader.h"

namespace millrace::data {

/// The stages of the making of one batch. One thread at a time.
class StageTrace {
 public:
  explicit StageTrace(const Clock& clock = SystemClock()) : clock_(&clock) {}

  /// From now on, until the next call. Returns what it was before.
  Stage Enter(Stage stage) {
    Stage before = now_;
    if (stage != before || marks_.empty()) marks_.push_back({clock_->Now(), stage});
    now_ = stage;
    return before;
  }

  /// The time between two moments by stage; what lies before the first mark counts as kPack.
  std::array<Duration, kStages> Within(TimePoint from, TimePoint to) const {
    std::array<Duration, kStages> spent{};
    TimePoint at = from;
    Stage stage = Stage::kPack;
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
    Stage stage;
  };
  const Clock* clock_;
  Stage now_ = Stage::kPack;
  std::vector<Mark> marks_;
};

/// Marks a stage for a scope; without a trace it does nothing.
class InStage {
 public:
  InStage(StageTrace* trace, Stage stage) : trace_(trace) {
    if (trace_) before_ = trace_->Enter(stage);
  }
  ~InStage() {
    if (trace_) trace_->Enter(before_);
  }
  InStage(const InStage&) = delete;
  InStage& operator=(const InStage&) = delete;

 private:
  StageTrace* const trace_;
  Stage before_ = Stage::kPack;
};

}  // namespace millrace::data
