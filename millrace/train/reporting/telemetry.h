// Writes events for TensorBoard in the background of the training loop.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Queues reports and histograms; a thread writes them and flushes every ten seconds. If the store is slow for long,
/// reports are dropped, and the log has their number. The log also has failures of the store. The destructor flushes
/// the rest. The first event of a run has the job as a text, and the hyperparameters. A run that stops before its last
/// step may go on, so it has no end in TensorBoard.
class Telemetry final : public RunObserver {
 public:
  struct Run {
    std::string name, job;  ///< the job is YAML
    metrics::HyperParameters parameters;
  };
  Telemetry(std::unique_ptr<metrics::EventWriter> writer, const Run& run, Clock& clock, Logger log);
  ~Telemetry() override;
  std::string_view observer_name() const override { return "TensorBoard"; }
  void OnStep(const StepReport& report) override;
  void OnFigures(const StepReport& means) override;
  /// Drops the histograms if those of several steps wait already.
  void OnHistograms(std::uint64_t step, const Histograms& histograms) override;
  void OnEnd(const RunEnd& end) override;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::train
