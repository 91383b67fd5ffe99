// The metrics of a run for Prometheus.
#pragma once

#include <array>
#include <string>

#include "millrace/metrics/metrics.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Adds up the reports of steps. Thread-safe.
class StepMetrics {
 public:
  /// `plan` has the number of steps, and of steps already done.
  explicit StepMetrics(const Plan& plan);
  void Add(const StepReport& report);
  std::string PrometheusText() const { return registry_.PrometheusText(); }

 private:
  metrics::Registry registry_;
  metrics::Gauge &step_, &loss_, &lr_, &grad_norm_, &tokens_per_second_;
  metrics::Counter& tokens_;
  metrics::Histogram &step_seconds_, &data_wait_, &comm_wait_, &checkpoint_wait_;
  std::array<metrics::Histogram*, data::kLoadStages> data_wait_on_{};
};

}  // namespace millrace::train
