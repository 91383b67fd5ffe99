#include "millrace/jobs/sweep/early_stopping.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace millrace::jobs {
namespace {

using Reports = std::vector<MetricReport>;

constexpr std::size_t kFewestOthers = 3;  // fewer have no median that says much

bool IsBetter(const StoppingOptions& options, double a, double b) { return options.lower_is_better ? a < b : a > b; }

std::uint64_t LastStep(const Reports& reports) { return reports.empty() ? 0 : reports.back().step; }

std::optional<std::string> WhyStopByMedian(const StoppingOptions& options, std::span<const Reports> runs,
                                           std::size_t which) {
  const Reports& own = runs[which];
  const std::uint64_t step = LastStep(own);
  if (own.empty() || step < options.min_steps) return std::nullopt;
  std::vector<double> means;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i == which || LastStep(runs[i]) < step) continue;
    double sum = 0, count = 0;
    for (const MetricReport& report : runs[i]) {
      if (report.step > step) break;
      sum += report.value;
      ++count;
    }
    if (count > 0) means.push_back(sum / count);
  }
  if (means.size() < kFewestOthers) return std::nullopt;
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>(means.size() / 2);
  std::ranges::nth_element(means, middle);
  double median = *middle;
  if (means.size() % 2 == 0) median = (median + *std::max_element(means.begin(), middle)) / 2;
  double best = own.front().value;
  for (const MetricReport& report : own) {
    if (IsBetter(options, report.value, best)) best = report.value;
  }
  if (!IsBetter(options, median, best)) return std::nullopt;
  return fmt::format("at step {} its best is {:.6g}, and the median of {} others is {:.6g}", step, best, means.size(),
                     median);
}

/// Returns the value of the first report at or behind a step.
std::optional<double> ValueAt(const Reports& reports, std::uint64_t step) {
  const auto found = std::ranges::find_if(reports, [&](const MetricReport& each) { return each.step >= step; });
  return found == reports.end() ? std::nullopt : std::optional(found->value);
}

/// Returns nothing beyond the range of steps.
std::optional<std::uint64_t> RungStep(const StoppingOptions& options, int rung) {
  std::uint64_t step = options.min_steps;
  for (int i = 0; i < rung; ++i) {
    const auto factor = static_cast<std::uint64_t>(options.factor);
    if (step > std::numeric_limits<std::uint64_t>::max() / factor) return std::nullopt;
    step *= factor;
  }
  return step;
}

std::optional<std::string> WhyStopByAsha(const StoppingOptions& options, std::span<const Reports> runs,
                                         std::size_t which, int& rungs_passed) {
  for (;; ++rungs_passed) {
    const std::optional<std::uint64_t> step = RungStep(options, rungs_passed);
    const std::optional<double> own = step ? ValueAt(runs[which], *step) : std::nullopt;
    if (!own) return std::nullopt;
    std::size_t at_rung = 0, better = 0;
    for (const Reports& reports : runs) {
      const std::optional<double> value = ValueAt(reports, *step);
      if (!value) continue;
      ++at_rung;
      if (IsBetter(options, *value, *own)) ++better;
    }
    const std::size_t goes_on = std::max<std::size_t>(1, at_rung / static_cast<std::size_t>(options.factor));
    if (better < goes_on) continue;
    ++rungs_passed;
    return fmt::format("at step {} it has {:.6g}, and {} of {} runs are better; the best {} {} on", *step, *own, better,
                       at_rung, goes_on, goes_on == 1 ? "goes" : "go");
  }
}

}  // namespace

std::optional<std::string> WhyStop(const StoppingOptions& options, std::span<const std::vector<MetricReport>> runs,
                                   std::size_t which, int& rungs_passed) {
  switch (options.rule) {
    case StoppingOptions::Rule::kMedian:
      return WhyStopByMedian(options, runs, which);
    case StoppingOptions::Rule::kAsha:
      return WhyStopByAsha(options, runs, which, rungs_passed);
    case StoppingOptions::Rule::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace millrace::jobs
