// The observer that sends a run's events to trackers of experiments and to users' call-backs.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/tracking/callbacks.h"
#include "millrace/tracking/tracker.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Returns the metrics of a step by their names in TensorBoard and in trackers: "train/loss", "eval/loss".
tracking::Metrics StepMetricsOf(const StepReport& report);
/// Returns the speed and the waits of steps, as shares of their time: "speed/tokens_per_s".
tracking::Metrics SpeedMetricsOf(const StepReport& means);

/// Tells a tracker of a run.
class TrackerObserver final : public RunObserver {
 public:
  /// `checkpoint_url`: of the run's checkpoints.
  TrackerObserver(std::unique_ptr<tracking::Tracker> tracker, std::string checkpoint_url)
      : tracker_(std::move(tracker)), checkpoint_url_(std::move(checkpoint_url)) {}
  std::string_view observer_name() const override { return "tracker"; }
  void OnRestart(const RunRestart& restart) override;
  void OnStep(const StepReport& report) override;
  void OnFigures(const StepReport& means) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  void OnEnd(const RunEnd& end) override;

 private:
  const std::unique_ptr<tracking::Tracker> tracker_;
  const std::string checkpoint_url_;
  std::uint64_t step_ = 0;  ///< of the last OnStep()
};

/// Calls the functions of a user's file (log.callbacks) with the objects that `millrace-train --json` prints.
class CallbackObserver final : public RunObserver {
 public:
  explicit CallbackObserver(std::unique_ptr<tracking::Callbacks> callbacks) : callbacks_(std::move(callbacks)) {}
  std::string_view observer_name() const override { return "log.callbacks"; }
  void OnPlan(const Plan& plan) override;
  void OnRestart(const RunRestart& restart) override;
  void OnStep(const StepReport& report) override;
  void OnEvaluation(const EvalReport& report) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  void OnEnd(const RunEnd& end) override;

 private:
  const std::unique_ptr<tracking::Callbacks> callbacks_;
};

}  // namespace millrace::train
