// The metrics of a run for Prometheus.
#pragma once

#include <array>
#include <span>
#include <string>

#include "millrace/checkpoint/save/writer.h"
#include "millrace/history/run_history.h"
#include "millrace/metrics/metrics.h"
#include "millrace/train/links/link_check.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Adds up the reports of steps. Thread-safe.
class StepMetrics {
 public:
  /// `plan` has the number of steps, and of steps already done. `flops_rate` is that of history::RunFacts.
  StepMetrics(const Plan& plan, double flops_rate);
  void Add(const StepReport& report);
  /// Shows the speed of a step, which may be the mean of several.
  void SetSpeed(const StepReport& report);
  void AddCheckpoint(const Result<checkpoint::SaveStats>& saved);
  /// Takes the latest figures of all ranks. They have the label "rank".
  void SetRanks(std::span<const history::RankFigures> ranks);
  /// Takes what was measured between the machines of the run. Links have the labels "from" and "to".
  void SetNetwork(const NetworkFigures& network);
  std::string PrometheusText() const { return registry_.PrometheusText(); }

 private:
  const double flops_rate_;
  metrics::Registry registry_;
  metrics::Gauge& step_;
  metrics::Gauge &checkpoint_step_, &checkpoint_seconds_, &checkpoint_bytes_;
  metrics::Counter &tokens_, &checkpoints_, &failed_checkpoints_;
  metrics::Histogram &step_seconds_, &data_wait_, &comm_wait_, &checkpoint_wait_;
  std::array<metrics::Histogram*, data::kLoadStages> data_wait_on_{};
};

}  // namespace millrace::train
