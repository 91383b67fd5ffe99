// TensorBoard scalars, written beside the training loop.
#pragma once

#include <memory>

#include "millrace/base/log.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/train/report.h"

namespace millrace::train {

/// Takes reports from the loop without ever holding it up, and a thread of its own writes them and flushes now and
/// then. When the store is slow for long, reports are dropped (and counted in the log); when it fails, the log says so.
/// The destructor flushes what is left. One caller thread.
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
