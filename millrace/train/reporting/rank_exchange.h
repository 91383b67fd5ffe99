// Brings the figures of all ranks together: how long their steps took, what they waited for, their memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/history/run_history.h"
#include "millrace/nvml/nvml.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Returns the times of a step as a history keeps them.
history::StepTimes TimesOf(const StepReport& report);

/// The stage and the device that this rank reports figures of.
struct RankPlace {
  int stage = 0;  ///< of the pipeline
  at::Device device = at::kCPU;
  std::shared_ptr<const nvml::GpuMeter> gpu = nullptr;  ///< of `device`; null: its load is unknown
};

/// Adds up a rank's steps. About once per interval, the ranks gather their means. This takes one all-gather of 16
/// numbers a rank, and no exchange in the steps between. One thread at a time.
class RankExchange {
 public:
  /// Rank 0 decides on the interval for all ranks; zero: nothing is gathered. Collective. REQUIRES: `group` and `clock`
  /// outlive this object.
  static Result<RankExchange> Make(engine::Collective& group, Duration interval, const RankPlace& place, Clock& clock);

  /// Takes the report of a step. All ranks call it after each step. Returns the figures of all ranks if they were
  /// gathered after this one.
  Result<std::optional<std::vector<history::RankFigures>>> AfterStep(const StepReport& report);
  /// Returns the number of steps in the figures that AfterStep() returned last.
  std::uint64_t gathered_steps() const { return gathered_steps_; }

 private:
  RankExchange(engine::Collective& group, double interval_s, const RankPlace& place, Clock& clock);

  // Constant after construction.
  engine::Collective* group_;
  double interval_s_;
  RankPlace place_;
  Clock* clock_;

  std::uint64_t steps_ = 0, due_ = 1;  ///< since the figures before; when the next ones are gathered
  std::uint64_t gathered_steps_ = 0;
  history::StepTimes sum_;
  double cpu_s_ = 0;  ///< processor time of this process at the figures before
  TimePoint since_;
};

}  // namespace millrace::train
