#include "apps/millrace/cli/progress.h"

#include "apps/common/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(200);
constexpr char kClearLine[] = "\r\033[K";
constexpr std::uint64_t kBarWidth = 24;

}  // namespace

bool WantsProgress(const std::string& flag, bool quiet, bool json) {
  if (flag == "on") return true;
  return flag == "auto" && !quiet && !json && isatty(STDERR_FILENO) == 1;
}

ProgressLine::ProgressLine(const transfer::BatchCounters& counters) : counters_(counters) {
  thread_.Spawn("progress", [this](std::stop_token stop) {
    TimePoint started = SystemClock().Now();
    while (SystemClock().SleepFor(kInterval, stop)) Draw(started);
    WriteErrorOutput(kClearLine);
  });
}

ProgressLine::~ProgressLine() { thread_.RequestStop(); }

void ProgressLine::Draw(TimePoint started) {
  double seconds = std::chrono::duration<double>(SystemClock().Now() - started).count();
  std::uint64_t fresh = counters_.bytes_moved, known = std::max<std::uint64_t>(counters_.bytes_known, 1);
  std::uint64_t moved = fresh + counters_.bytes_resumed;
  double rate = static_cast<double>(fresh) / std::max(seconds, 1e-3);
  std::uint64_t filled = std::min(kBarWidth, moved * kBarWidth / known);
  std::string eta;
  // While items are still being listed nobody knows how much is left.
  if (counters_.all_known && rate > 0 && known > moved) {
    auto left = std::chrono::seconds(static_cast<std::int64_t>(static_cast<double>(known - moved) / rate) + 1);
    eta = "  ETA " + FormatDuration(left);
  }
  std::string failed = counters_.items_failed ? fmt::format(", {} failed", counters_.items_failed.load()) : "";
  PrintError("{}[{:#>{}}{:.>{}}] {} of {}{}  {}/s{}  {}/{} items{}", kClearLine, "", filled, "", kBarWidth - filled,
             FormatBytes(moved), FormatBytes(known), counters_.all_known ? "" : "+",
             FormatBytes(static_cast<std::uint64_t>(rate)), eta, counters_.items_done.load(),
             counters_.items_known.load(), failed);
}

}  // namespace millrace::cli
