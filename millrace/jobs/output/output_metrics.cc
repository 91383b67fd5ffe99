#include "millrace/jobs/output/output_metrics.h"

#include <utility>

namespace millrace::jobs {

OutputMetrics::OutputMetrics(const std::vector<MetricDefinition>& definitions, history::LoggedMetrics earlier,
                             OnValue on_value)
    : matcher_(definitions), on_value_(std::move(on_value)), earlier_(std::move(earlier)) {}

void OutputMetrics::TakeLine(std::string_view line) {
  const TrainerLine read = transcript_.Read(line);
  if (read.starts) {
    if (!metrics_.series().empty()) earlier_ = std::exchange(metrics_, {});
    step_ = 0;
  }
  if (read.resumed_from && *read.resumed_from > 0) {
    metrics_ = std::exchange(earlier_, {});
    metrics_.DropAfter(*read.resumed_from);
    step_ = *read.resumed_from;
  }
  if (read.step) step_ = *read.step;
  Search(read.text, line);
}

void OutputMetrics::TakeEnd(Duration ran) {
  if (const auto summary = transcript_.Summary(ran)) Search(*summary, *summary);
}

void OutputMetrics::Search(std::string_view readable, std::string_view line) {
  std::vector<std::pair<std::string, double>> values;
  matcher_.Find(readable, line, [&](const std::string& name, double value) { values.emplace_back(name, value); });
  constexpr double kMaxSteps = 1e15;  // beyond, a double may skip integers
  for (const auto& [name, value] : values) {
    if (name == "step" && value >= 1 && value <= kMaxSteps) step_ = static_cast<std::uint64_t>(value);
  }
  for (const auto& [name, value] : values) {
    const std::uint64_t step = step_ > 0 ? step_ : ++found_[name];
    metrics_.Add(name, step, value);
    if (on_value_) on_value_(name, step, value);
  }
}

}  // namespace millrace::jobs
