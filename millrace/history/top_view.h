// The live view of `millrace top`, as lines of text. It knows no terminal: the caller gives the size, and prints.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/history/job_summary.h"
#include "millrace/history/run_history.h"

namespace millrace::history {

/// The size of a view.
struct ViewSize {
  int width = 80;         ///< columns; lines are cut there
  int height = 0;         ///< lines; 0: as many as there are
  std::size_t first = 0;  ///< the first rank shown
  bool colours = false;   ///< SGR escape sequences
  bool keys = false;      ///< the last line says which keys there are
};

/// Returns the lines of the view at `now` (seconds since 1970). Of ranks, it shows those that have room. Control
/// characters in names and messages are replaced, so nothing in a file can move the cursor.
std::vector<std::string> DrawTop(const JobSummary& job, const RunHistory& history, double now, const ViewSize& size);

/// Returns how many ranks DrawTop() shows at once.
std::size_t RanksShown(const JobSummary& job, const RunHistory& history, const ViewSize& size);

/// Returns the numbers of the view as one object; README.md has its keys.
Json TopToJson(const JobSummary& job, const RunHistory& history, double now);

/// Returns a chart of `values` in block characters, `width` characters wide at most.
std::string Sparkline(const std::vector<double>& values, std::size_t width);

}  // namespace millrace::history
