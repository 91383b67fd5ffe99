// Collects the metrics of log.metric_definitions from the lines that rank 0 writes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/history/logged_metrics.h"
#include "millrace/jobs/output/metric_definitions.h"
#include "millrace/jobs/output/trainer_lines.h"

namespace millrace::jobs {

/// A value belongs to the step of its line, or else to the last step that was known. The value of a metric named "step"
/// is such a step. Without any, values are counted. One thread at a time.
class OutputMetrics {
 public:
  using OnValue = std::function<void(const std::string& name, std::uint64_t step, double value)>;

  /// `earlier`: what the run of the job before this one left. It is kept if the trainer resumes.
  /// `on_value`: gets each value that is found, with its step. May be empty.
  /// REQUIRES: CheckMetricRegex() accepts all expressions.
  OutputMetrics(const std::vector<MetricDefinition>& definitions, history::LoggedMetrics earlier,
                OnValue on_value = {});

  /// Takes a line of rank 0's standard output or standard error, without its newline.
  void TakeLine(std::string_view line);
  /// The job is done. Searches the summary that transformers' Trainer prints at its end.
  void TakeEnd(Duration ran);

  const history::LoggedMetrics& metrics() const { return metrics_; }

 private:
  void Search(std::string_view readable, std::string_view line);

  const MetricMatcher matcher_;
  const OnValue on_value_;
  TrainerTranscript transcript_;
  history::LoggedMetrics earlier_, metrics_;
  std::uint64_t step_ = 0;                      ///< 0: no line had one
  std::map<std::string, std::uint64_t> found_;  ///< values of each metric, if there are no steps
};

}  // namespace millrace::jobs
