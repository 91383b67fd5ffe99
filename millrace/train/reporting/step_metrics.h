// The metrics of a run for Prometheus.
#pragma once

#include <array>
#include <span>
#include <string>

#include "millrace/history/run_history.h"
#include "millrace/metrics/metrics.h"
#include "millrace/train/ranks/link_check.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Adds up the reports of steps. Thread-safe.
class StepMetrics final : public RunObserver {
 public:
  /// `plan` has the number of steps, and of steps already done. `flops_rate` is that of history::RunFacts.
  StepMetrics(const Plan& plan, double flops_rate);
  std::string_view observer_name() const override { return "metrics"; }
  void OnStep(const StepReport& report) override;
  void OnFigures(const StepReport& means) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  /// The figures have the label "rank".
  void OnRanks(std::span<const history::RankFigures> ranks) override;
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
