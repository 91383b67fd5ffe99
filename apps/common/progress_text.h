// The text of a progress line: a bar, bytes, the rate, the time left and items, as much as fits a line.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/clock.h"

namespace millrace::cli {

/// The state of some work.
struct WorkProgress {
  std::uint64_t bytes_done = 0, bytes_known = 0;  ///< known: of the work that was found so far; 0: bytes do not count
  std::uint64_t items_done = 0, items_known = 0;  ///< known 0: items do not count
  std::uint64_t items_failed = 0;
  bool all_known = false;  ///< no more work will be found
  double bytes_per_second = 0;
};

/// Returns the line in at most `columns` characters. A short line has no bar; a shorter one has less text.
std::string ProgressText(const WorkProgress& progress, int columns);

/// The rate of the last seconds. One thread.
class RecentRate {
 public:
  /// Adds how many bytes had moved at `now`. Times never decrease.
  void Add(TimePoint now, std::uint64_t bytes);
  double bytes_per_second() const;

 private:
  std::deque<std::pair<TimePoint, std::uint64_t>> samples_;  ///< of kWindow, and one from before
};

}  // namespace millrace::cli
