// A progress line on the terminal.
#pragma once

#include <string>

#include "apps/common/progress_text.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/transfer/plan/batch.h"

namespace millrace::cli {

/// Returns whether standard error should show progress, given --progress, --quiet and --json.
bool WantsProgress(const std::string& flag, bool quiet, bool json);

/// Redraws one line of standard error from the counters until it is destroyed; then removes it. `counters` must outlive
/// it.
class ProgressLine {
 public:
  explicit ProgressLine(const transfer::BatchCounters& counters);
  ~ProgressLine();

 private:
  void Draw();
  const transfer::BatchCounters& counters_;
  RecentRate rate_;  ///< the thread's
  TaskScope thread_;
};

}  // namespace millrace::cli
