// The metrics that a job file takes from the output of rank 0: log.metric_definitions, in the form of SageMaker's
// Estimator. Each is a name and a regular expression. RE2 searches in linear time and with bounded memory, whatever the
// expression and the line are.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace re2 {
class RE2;
}

namespace millrace::jobs {

/// The bounds are SageMaker's (AlgorithmSpecification and MetricDefinition in its API).
inline constexpr std::size_t kMaxMetricDefinitions = 40, kMaxMetricName = 255, kMaxMetricRegex = 500;

struct MetricDefinition {
  std::string name;
  std::string regex;  ///< in RE2's syntax; its group, or all of the match if it has no group, is the value
  bool operator==(const MetricDefinition&) const = default;
};

/// Errors: kInvalidArgument if RE2 cannot read the expression, or it has more than one group.
Status CheckMetricRegex(const std::string& regex);

/// Finds values in lines. Movable. One thread at a time.
class MetricMatcher {
 public:
  /// REQUIRES: CheckMetricRegex() accepts all expressions.
  explicit MetricMatcher(const std::vector<MetricDefinition>& definitions);
  ~MetricMatcher();
  MetricMatcher(MetricMatcher&&) noexcept;
  MetricMatcher& operator=(MetricMatcher&&) = delete;

  /// Calls `take` for each definition that finds a finite number: in `readable`, or else in `line`.
  void Find(std::string_view readable, std::string_view line,
            const std::function<void(const std::string& name, double value)>& take) const;

 private:
  struct Expression {
    std::string name;
    std::unique_ptr<const re2::RE2> regex;
  };
  std::vector<Expression> expressions_;
};

}  // namespace millrace::jobs
