// The supervisor's part in seeing a job: it keeps the events and the HTML report, and tells of slow ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/history/job_summary.h"
#include "millrace/history/run_history.h"
#include "millrace/jobs/state.h"
#include "millrace/jobs/supervisor.h"

namespace millrace::cli {

/// Returns what views show of a status.
history::JobSummary SummaryOf(const jobs::JobStatus& status);
/// Returns the path of the history in a job's folder. Rank 0 writes it, where its machine has the folder.
std::string HistoryFileIn(const std::filesystem::path& folder);
/// Returns the path of the report in a job's folder.
std::string ReportFileIn(const std::filesystem::path& folder);
/// Returns the history in a job's folder; an empty one if there is none, or none that this version reads.
history::RunHistory HistoryIn(const std::filesystem::path& folder);

/// Writes logs/events.jsonl and report.html into a job's folder. The report is written every minute and at the end.
/// Files that cannot be written are reported once and disturb nothing. One thread at a time.
class RunReporter {
 public:
  /// `on_slow` gets an event for each rank that has become slower than its peers: "straggler" {rank, node, slowness}.
  RunReporter(std::filesystem::path folder, Clock& clock, Logger log,
              std::function<void(const jobs::JobEvent&)> on_slow);
  /// Writes the last report.
  ~RunReporter();

  void NoteEvent(const jobs::JobEvent& event);
  void NoteStatus(const jobs::JobStatus& status);

 private:
  void LookForStragglers(const history::RunHistory& history);
  void WriteReport(const history::RunHistory& history);
  void Check(const Status& done);

  // Constant after construction.
  const std::filesystem::path folder_;
  Clock& clock_;
  const Logger log_;
  const std::function<void(const jobs::JobEvent&)> on_slow_;

  history::JobSummary job_;
  std::set<std::size_t> slow_;
  TimePoint next_look_, next_report_;
  bool failed_ = false;
};

}  // namespace millrace::cli
