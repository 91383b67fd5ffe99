// Early stopping: finds the unpromising runs of a sweep by a metric that the runs report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace::jobs {

/// A value of the metric after a number of steps.
struct MetricReport {
  std::uint64_t step = 0;
  double value = 0;
};

struct StoppingOptions {
  enum class Rule { kNone, kMedian, kAsha };
  Rule rule = Rule::kNone;
  bool lower_is_better = true;
  std::uint64_t min_steps = 0;  ///< no run is stopped before; of ASHA also the first rung, so at least 1
  int factor = 3;               ///< of ASHA: one run of `factor` goes on from a rung (eta)
};

/// Says why a run should be stopped: a sentence; nothing: it should go on.
///
/// Median (Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017): a run is stopped at step s
/// if its best value so far is worse than the median of the others' means over their reports up to s. Counts runs that
/// have come to s, also those that still run; with fewer than 3 of them, none is stopped.
///
/// ASHA (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020), in the form that stops rather
/// than promotes: rungs are at min_steps · factor^k steps. A run that comes to a rung goes on if its value there is
/// among the best n / factor (at least one) of the n runs that have come to it so far. Each rung is judged once:
/// `rungs_passed` is the run's number of judged rungs, and is raised.
///
/// `runs`: the reports of each run in order of their steps, all values finite. REQUIRES: which < runs.size().
std::optional<std::string> WhyStop(const StoppingOptions& options, std::span<const std::vector<MetricReport>> runs,
                                   std::size_t which, int& rungs_passed);

}  // namespace millrace::jobs
