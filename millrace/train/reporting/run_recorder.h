// Keeps the history of a run, and writes it to a file in the background of the training loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/history/run_history.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// Returns, as Prometheus reads them, the metrics of log.metric_definitions, which the supervisor keeps beside the
/// history. Empty if there are none, or if this machine does not have the supervisor's folder.
std::string LoggedMetricsText(const std::filesystem::path& history_file);

/// Rank 0 has one. A thread writes the file about once a second, if something has changed, and at the end. A file that
/// cannot be written is reported once and disturbs nothing. Thread-safe.
class RunRecorder final : public RunObserver {
 public:
  /// Goes on with the history in the file if the run goes on. An empty `file`: it is in memory only. `flops_rate` is
  /// that of history::RunFacts. REQUIRES: `clock` outlives the recorder.
  RunRecorder(std::filesystem::path file, const Plan& plan, double flops_rate, Clock& clock, Logger log);
  ~RunRecorder() override;

  std::string_view observer_name() const override { return "history"; }
  void OnStep(const StepReport& report) override;
  void OnEvaluation(const EvalReport& report) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  void OnRanks(std::span<const history::RankFigures> ranks) override;
  void OnEnd(const RunEnd& end) override;
  std::string ToJson() const;

 private:
  void Stop();
  void Write();
  double Now() const;

  // Constant after construction.
  const std::filesystem::path file_;
  Clock& clock_;
  const Logger log_;

  mutable Mutex mutex_;
  history::RunHistory history_ MR_GUARDED_BY(mutex_);
  bool changed_ MR_GUARDED_BY(mutex_) = true;
  bool failed_ = false;  ///< of the writer's thread, and of OnEnd() after it
  TaskScope writer_;
};

}  // namespace millrace::train
