// A line on the terminal that says how far a transfer is.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/transfer/plan/batch.h"

namespace millrace::cli {

/// Whether standard error should show progress, given --progress, --quiet and --json.
bool WantsProgress(const std::string& flag, bool quiet, bool json);

/// Redraws one line of standard error from the counters until it is destroyed; then removes it. `counters` must outlive
/// it.
class ProgressLine {
 public:
  explicit ProgressLine(const transfer::BatchCounters& counters);
  ~ProgressLine();

 private:
  void Draw(TimePoint started);
  const transfer::BatchCounters& counters_;
  TaskScope thread_;
};

}  // namespace millrace::cli
