// Finds ranks that are slower than their peers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/history/run_history.h"

namespace millrace::history {

/// Returns, for each rank, its own time over the median own time of its peers. A rank's own time is that of a step
/// without the waits for other ranks. Its peers are the other ranks of its pipeline stage. 1 without peers.
std::vector<double> FindSlowness(std::span<const RankFigures> ranks);

/// Watches the reports of ranks. A rank straggles once its slowness was at least kSlow in consecutive reports over at
/// least kSteps steps, and until it is below kRecovered. One thread at a time.
class StragglerDetector {
 public:
  static constexpr double kSlow = 1.5, kRecovered = 1.2;  ///< apart, so that a rank between them does not flap
  static constexpr std::uint64_t kSteps = 20;             ///< a pause of a few steps is no straggler
  static constexpr int kReports = 3;

  /// Takes a report over `steps` steps. Fills in `slowness` and `straggles` of each rank. Returns the ranks that
  /// straggle since this report.
  std::vector<int> Observe(std::span<RankFigures> ranks, std::uint64_t steps);

 private:
  struct Watched {
    std::uint64_t steps = 0;
    int reports = 0;
    bool straggles = false;
  };
  std::vector<Watched> watched_;
};

}  // namespace millrace::history
