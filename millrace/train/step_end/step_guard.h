// Decides whether the optimizer uses the gradients of a step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "millrace/base/result.h"
#include "millrace/train/reporting/report.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/step_end/loss_scale.h"
#include "millrace/train/step_end/spikes.h"

namespace millrace::train {

/// Checks the loss and the gradient norm of each step. Every rank makes the same calls with the same numbers, and gets
/// the same answers. One thread at a time.
class StepGuard {
 public:
  enum class Verdict {
    kLearn,
    kLeaveOut,  ///< the gradient overflowed with this loss scale: the step is left out
    kSpike,     ///< the loss or the gradient jumped: SpikeOptions::action says what to do
  };

  /// `first_loss_scale`: nothing if the loss has no scale.
  StepGuard(const SpikeOptions& spikes, std::optional<double> first_loss_scale);

  /// Returns the factor of the mean loss in the backward passes, with float16.
  std::optional<double> loss_scale() const;

  /// Takes the loss and the gradient norm of `report`, and sets its `overflow` and `spike`.
  /// Errors: kInternal if they are not finite numbers, and no option says to go on.
  Result<Verdict> CheckStep(StepReport& report);
  /// Call after kLeaveOut. Returns an error if the loss scale was reduced so often that a smaller one cannot help.
  Status CheckLossScale(std::uint64_t step) const;
  /// Counts a spike of `step` that was left out. Errors: kInternal after too many in a row.
  Status NoteLeftOut(std::uint64_t step) const;
  /// Counts a return to the checkpoint of `step`. Errors: kInternal after too many returns to that step.
  Status NoteWentBack(std::uint64_t step);

  /// Puts into `state` what a resumed run needs to come to the same answers.
  void Save(RunState& state) const;
  /// Errors: kCorrupt.
  Status Restore(const RunState& state);

 private:
  bool looks_for_spikes() const { return options_.action != SpikeOptions::Action::kNone; }

  const SpikeOptions options_;
  SpikeDetector spikes_;
  std::optional<LossScale> loss_scale_;
  /// How often the run went back to a step. Not in checkpoints: until another checkpoint is committed, a run that is
  /// started again begins at this step and its samples, and goes back as often.
  std::map<std::uint64_t, int> went_back_;
  int not_finite_ = 0;  ///< steps in a row whose loss or gradient was not finite
};

}  // namespace millrace::train
