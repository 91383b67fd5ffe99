// Writes events for TensorBoard in the background of the training loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/train/histograms/parameter_histograms.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Queues reports and histograms; a thread writes them and flushes every ten seconds. Add() never blocks. If the store
/// is slow for long, reports are dropped, and the log has their number. The log also has failures of the store. The
/// destructor flushes the rest. One caller thread. A run begins with what it was made with: the job as a text, and
/// hyperparameters.
class Telemetry {
 public:
  struct Run {
    std::string name, job;  ///< the job is YAML
    metrics::HyperParameters parameters;
  };
  Telemetry(std::unique_ptr<metrics::EventWriter> writer, const Run& run, Clock& clock, Logger log);
  ~Telemetry();
  void Add(const StepReport& report);
  /// Queues the speed and the waits of a step, which may be means of several.
  void AddSpeed(const StepReport& report);
  /// Queues the histograms of a step. Drops them if those of several steps wait already.
  void AddHistograms(std::uint64_t step, std::vector<ParameterHistogram> histograms);
  /// The last step of the job was made. A run that stops before may go on, so it has no end in TensorBoard.
  void NoteEnd();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::train
