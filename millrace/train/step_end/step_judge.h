// Decides what becomes of a step: whether its gradients are learnt from.
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

/// Judges the steps of a run by their losses and gradient norms. Every rank makes the same calls with the same numbers,
/// and so comes to the same answers. One thread at a time.
class StepJudge {
 public:
  enum class Verdict {
    kLearn,
    kLeaveOut,  ///< with this loss scale, the gradient is not finite
    kSpike,     ///< the loss or the gradient jumped: SpikeOptions::action says what to do
  };

  /// `first_loss_scale`: nothing: the loss has no factor.
  StepJudge(const SpikeOptions& spikes, std::optional<double> first_loss_scale);

  /// Returns the factor of the mean loss in the backward passes, with float16.
  std::optional<double> loss_scale() const;

  /// Takes the loss and the gradient norm of `report`, and sets its `overflow` and `spike`.
  /// Errors: kInternal if they are not finite numbers, and no option says to go on.
  Result<Verdict> Judge(StepReport& report);
  /// Returns an error if the loss scale was made smaller so often that no factor can help. After kLeaveOut.
  Status CheckLossScale(std::uint64_t step) const;
  /// Notes that a spike of `step` was left out. Errors: kInternal if that happened too often in a row.
  Status NoteLeftOut(std::uint64_t step) const;
  /// Notes that the run went back to the checkpoint of `step`. Errors: kInternal if it went back there too often.
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
