// The report of a run: one HTML page that needs nothing else.
#pragma once

#include <string>

#include "millrace/history/job_summary.h"
#include "millrace/history/run_history.h"

namespace millrace::history {

/// Returns the page: numbers, charts of loss, learning rate and speed, where the time went, ranks, checkpoints, starts
/// and events. Charts are inline SVG; there is no script and nothing is loaded. Texts are escaped. `written` is the
/// time of writing (ISO 8601).
std::string ReportHtml(const JobSummary& job, const RunHistory& history, const std::string& written);

}  // namespace millrace::history
