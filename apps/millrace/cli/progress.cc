#include "apps/millrace/cli/progress.h"

#include <unistd.h>

#include "apps/common/output.h"

namespace millrace::cli {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(200);
constexpr char kClearLine[] = "\r\033[K";

}  // namespace

bool WantsProgress(const std::string& flag, bool quiet, bool json) {
  if (flag == "on") return true;
  return flag == "auto" && !quiet && !json && isatty(STDERR_FILENO) == 1;
}

ProgressLine::ProgressLine(const transfer::BatchCounters& counters) : counters_(counters) {
  thread_.Spawn("progress", [this](std::stop_token stop) {
    while (SystemClock().SleepFor(kInterval, stop)) Draw();
    WriteErrorControls(kClearLine);
  });
}

ProgressLine::~ProgressLine() { thread_.RequestStop(); }

void ProgressLine::Draw() {
  const std::uint64_t fresh = counters_.bytes_moved;
  rate_.Add(SystemClock().Now(), fresh);
  const WorkProgress progress{.bytes_done = fresh + counters_.bytes_resumed,
                              .bytes_known = counters_.bytes_known,
                              .items_done = counters_.items_done,
                              .items_known = counters_.items_known,
                              .items_failed = counters_.items_failed,
                              .all_known = counters_.all_known,
                              .bytes_per_second = rate_.bytes_per_second()};
  if (progress.bytes_known == 0 && progress.items_known == 0) return;  // nothing to show yet
  // A character in the last column would wrap in some terminals.
  WriteErrorControls(kClearLine + ProgressText(progress, OutputColumns(STDERR_FILENO) - 1));
}

}  // namespace millrace::cli
