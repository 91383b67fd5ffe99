// Metrics that a job file defines (log.metric_definitions). The supervisor finds their values in the output of rank 0
// and keeps them in metrics.json in the job's folder, which docs/formats/run-history.md describes. Views read them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::history {

/// Consecutive values of a metric.
struct MetricPoint {
  std::uint64_t first_step = 0, last_step = 0;
  std::uint64_t values = 0;
  double mean = 0;
  bool operator==(const MetricPoint&) const = default;
};

/// The values of one metric. Plain data with bounds.
struct MetricSeries {
  std::uint64_t stride = 1;  ///< values of a full point
  double latest = 0;
  std::vector<MetricPoint> points;  ///< at least one, in order of their steps
  bool operator==(const MetricSeries&) const = default;
};

/// One thread at a time.
class LoggedMetrics {
 public:
  static constexpr std::size_t kMaxSeries = 40;   ///< as many definitions as a job file may have
  static constexpr std::size_t kMaxPoints = 512;  ///< of one metric, as RunHistory::kMaxPoints

  /// Adds a value. A step before the last one of this metric means that the run went back: the value takes the place of
  /// the later ones. Joins neighbours when there are too many points. REQUIRES: `value` is finite.
  void Add(const std::string& name, std::uint64_t step, double value);
  /// Drops the values after `step`: a run that resumes makes these steps again.
  void DropAfter(std::uint64_t step);

  const std::map<std::string, MetricSeries>& series() const { return series_; }

  /// Returns the latest values as Prometheus reads them: millrace_logged_metric{name="NAME"}. Empty without any.
  std::string PrometheusText() const;
  Json ToJson() const;
  /// Errors: kCorrupt if the text is not of this version, or is larger than the bounds.
  static Result<LoggedMetrics> Parse(std::string_view text, std::string_view what);
  bool operator==(const LoggedMetrics&) const = default;

 private:
  std::map<std::string, MetricSeries> series_;  ///< by name
};

/// The file of the metrics in a job's folder.
inline constexpr std::string_view kMetricsFile = "metrics.json";
/// Bounds its size: all points of all metrics are less.
inline constexpr std::uint64_t kMaxMetricsBytes = 8 << 20;

}  // namespace millrace::history
