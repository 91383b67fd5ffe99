// Writes TensorBoard scalars in the background of the training loop.
#pragma once

#include <memory>

#include "millrace/base/log.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Queues reports; a thread writes them and flushes every ten seconds. Add() never blocks. If the store is slow for
/// long, reports are dropped, and the log has their number. The log also has failures of the store. The destructor
/// flushes the rest. One caller thread.
class Telemetry {
 public:
  Telemetry(std::unique_ptr<metrics::EventWriter> writer, Clock& clock, Logger log);
  ~Telemetry();
  void Add(const StepReport& report);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::train
