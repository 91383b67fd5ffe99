#include "millrace/jobs/output/metric_definitions.h"

#include <re2/re2.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

re2::RE2::Options QuietOptions() {
  re2::RE2::Options options;
  options.set_log_errors(false);  // the caller reports them
  return options;
}

std::optional<double> NumberIn(std::string_view text) {
  text = Trim(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> Search(const re2::RE2& regex, std::string_view line) {
  re2::StringPiece groups[2];  // all of the match, and the group
  const int wanted = 1 + regex.NumberOfCapturingGroups();
  if (!regex.Match({line.data(), line.size()}, 0, line.size(), re2::RE2::UNANCHORED, groups, wanted)) {
    return std::nullopt;
  }
  const re2::StringPiece& found = groups[wanted - 1];
  return NumberIn({found.data(), found.size()});
}

}  // namespace

Status CheckMetricRegex(const std::string& regex) {
  const re2::RE2 read(regex, QuietOptions());
  if (!read.ok()) {
    return Fail(Code::kInvalidArgument, "is not a regular expression of RE2: {}; change it to the syntax of RE2",
                read.error());
  }
  if (read.NumberOfCapturingGroups() > 1) {
    return Fail(Code::kInvalidArgument, "has {} groups, and only one can be the value; write the others as (?:...)",
                read.NumberOfCapturingGroups());
  }
  return {};
}

MetricMatcher::MetricMatcher(const std::vector<MetricDefinition>& definitions) {
  for (const MetricDefinition& definition : definitions) {
    expressions_.push_back({definition.name, std::make_unique<const re2::RE2>(definition.regex, QuietOptions())});
  }
}

MetricMatcher::~MetricMatcher() = default;
MetricMatcher::MetricMatcher(MetricMatcher&&) noexcept = default;

void MetricMatcher::Find(std::string_view readable, std::string_view line,
                         const std::function<void(const std::string&, double)>& take) const {
  for (const Expression& expression : expressions_) {
    std::optional<double> value = Search(*expression.regex, readable);
    if (!value && readable != line) value = Search(*expression.regex, line);
    if (value) take(expression.name, *value);
  }
}

}  // namespace millrace::jobs
