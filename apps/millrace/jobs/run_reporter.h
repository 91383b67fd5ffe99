// Records a job for its views: the events of the supervisor, the metrics that the job file defines and the HTML report.
// Also reports slow ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/jobs/job_trackers.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/history/job_summary.h"
#include "millrace/history/run_history.h"
#include "millrace/jobs/output/metric_events.h"
#include "millrace/jobs/output/output_metrics.h"
#include "millrace/jobs/state.h"
#include "millrace/jobs/supervisor.h"

namespace millrace::cli {

/// Returns the part of a status that views show.
history::JobSummary SummaryOf(const jobs::JobStatus& status);
/// Returns the path of the history in a job's folder. Rank 0 writes it, where its machine has the folder.
std::string HistoryFileIn(const std::filesystem::path& folder);
/// Returns the path of the report in a job's folder.
std::string ReportFileIn(const std::filesystem::path& folder);
/// Returns the history in a job's folder; an empty one if there is none, or none that this version reads.
history::RunHistory HistoryIn(const std::filesystem::path& folder);

/// Returns the path of the metrics in a job's folder that the job file defines.
std::string MetricsFileIn(const std::filesystem::path& folder);
/// Returns those metrics; none if there is no file, or none that this version reads.
history::LoggedMetrics MetricsIn(const std::filesystem::path& folder);

/// Writes logs/events.jsonl, metrics.json and report.html into a job's folder. The metrics are written every few
/// seconds if the job file defines any, the report every minute, both also at the end.
/// Files that cannot be written are reported once and disturb nothing. One thread at a time.
class RunReporter {
 public:
  /// The receivers of the metrics of the job file, beside metrics.json; null: none.
  struct MetricTargets {
    std::unique_ptr<jobs::MetricEvents> events;  ///< TensorBoard
    std::unique_ptr<JobTrackers> trackers;
  };
  /// `on_slow` gets an event for each rank that has become slower than its peers: "straggler" {rank, node, slowness}.
  RunReporter(std::filesystem::path folder, const std::vector<jobs::MetricDefinition>& definitions, Clock& clock,
              Logger log, MetricTargets targets, std::function<void(const jobs::JobEvent&)> on_slow);
  /// Writes the last report.
  ~RunReporter();

  void NoteEvent(const jobs::JobEvent& event);
  /// Searches a line of rank 0 for metrics.
  void NoteLine(std::string_view line);
  void NoteStatus(const jobs::JobStatus& status);

 private:
  void LookForStragglers(const history::RunHistory& history);
  void WriteMetrics();
  void WriteReport(const history::RunHistory& history);
  void Check(const Status& done);

  // Constant after construction.
  const std::filesystem::path folder_;
  Clock& clock_;
  const Logger log_;
  const MetricTargets targets_;
  const std::function<void(const jobs::JobEvent&)> on_slow_;

  std::optional<jobs::OutputMetrics> output_;  ///< if the job file defines metrics
  TimePoint started_;
  history::JobSummary job_;
  std::set<std::size_t> slow_;
  TimePoint next_look_, next_report_;
  bool failed_ = false;
};

}  // namespace millrace::cli
