#include "millrace/metrics/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

namespace millrace::metrics {
namespace {

bool IsNameChar(char c, bool first) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' || (!first && c >= '0' && c <= '9');
}

bool IsMetricName(std::string_view name) {
  if (name.empty() || !IsNameChar(name.front(), true)) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return IsNameChar(c, false); });
}

/// Help texts escape backslash and newline; label values the double quote too.
std::string Escape(std::string_view text, bool quotes) {
  std::string escaped;
  escaped.reserve(text.size());
  for (char c : text) {
    if (c == '\\') {
      escaped += "\\\\";
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '"' && quotes) {
      escaped += "\\\"";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

/// `a="1",b="2"`: the text between the braces, which also identifies the metric within its family.
std::string LabelText(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    assert(IsMetricName(name) && name.find(':') == std::string::npos);
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, Escape(value, true));
  }
  return text;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// `name{labels} value`, without braces where there are no labels.
void AppendSample(std::string& out, std::string_view name, std::string_view labels, std::string_view value) {
  if (labels.empty()) {
    out += fmt::format("{} {}\n", name, value);
  } else {
    out += fmt::format("{}{{{}}} {}\n", name, labels, value);
  }
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : bounds_(std::move(upper_bounds)), buckets_(new std::atomic<std::uint64_t>[bounds_.size() + 1] {}) {
  assert(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::Observe(double value) {
  // NaN compares false with every bound and lands in the last bucket, as it would in Prometheus' own client.
  std::size_t bucket = 0;
  while (bucket < bounds_.size() && !(value <= bounds_[bucket])) ++bucket;
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Totals Histogram::totals() const {
  Totals totals{.sum = sum_.load(std::memory_order_relaxed)};
  for (std::size_t i = 0; i <= bounds_.size(); ++i) totals.count += buckets_[i].load(std::memory_order_relaxed);
  return totals;
}

double Histogram::Quantile(double q) const {
  const double rank = q * static_cast<double>(totals().count);
  double below = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    const auto here = static_cast<double>(buckets_[i].load(std::memory_order_relaxed));
    if (here > 0 && below + here >= rank) {
      const double from = i == 0 ? 0 : bounds_[i - 1];
      return from + (bounds_[i] - from) * (rank - below) / here;
    }
    below += here;
  }
  return below < rank && !bounds_.empty() ? bounds_.back() : 0;
}

/// Metrics of one name and type, one for each set of labels; only one of the three maps is used.
struct Registry::Family {
  std::string help, type;
  std::map<std::string, std::unique_ptr<Counter>> counters;
  std::map<std::string, std::unique_ptr<Gauge>> gauges;
  std::map<std::string, std::unique_ptr<Histogram>> histograms;
};

Registry::Family& Registry::FamilyOf(std::string name, std::string help, std::string_view type) {
  assert(IsMetricName(name));
  auto [at, inserted] = families_.try_emplace(std::move(name));
  if (inserted) {
    at->second = std::make_shared<Family>();
    at->second->help = std::move(help);
    at->second->type = type;
  }
  assert(at->second->type == type && "one metric name, two types");
  return *at->second;
}

Counter& Registry::AddCounter(std::string name, std::string help, Labels labels) {
  MutexLock lock(mutex_);
  auto& slot = FamilyOf(std::move(name), std::move(help), "counter").counters[LabelText(labels)];
  if (!slot) slot = std::make_unique<Counter>();
  return *slot;
}

Gauge& Registry::AddGauge(std::string name, std::string help, Labels labels) {
  MutexLock lock(mutex_);
  auto& slot = FamilyOf(std::move(name), std::move(help), "gauge").gauges[LabelText(labels)];
  if (!slot) slot = std::make_unique<Gauge>();
  return *slot;
}

Histogram& Registry::AddHistogram(std::string name, std::string help, std::vector<double> upper_bounds, Labels labels) {
  MutexLock lock(mutex_);
  auto& slot = FamilyOf(std::move(name), std::move(help), "histogram").histograms[LabelText(labels)];
  if (!slot) slot = std::make_unique<Histogram>(std::move(upper_bounds));
  return *slot;
}

std::string Registry::PrometheusText() const {
  MutexLock lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, Escape(family->help, false), name, family->type);
    for (const auto& [labels, counter] : family->counters)
      AppendSample(out, name, labels, fmt::format("{}", counter->value()));
    for (const auto& [labels, gauge] : family->gauges) AppendSample(out, name, labels, Number(gauge->value()));
    for (const auto& [labels, histogram] : family->histograms) {
      std::string_view comma = labels.empty() ? "" : ",";
      // The count is the sum of the buckets just read, so the sample is consistent while others observe.
      std::uint64_t seen = 0;
      for (std::size_t i = 0; i <= histogram->bounds_.size(); ++i) {
        seen += histogram->buckets_[i].load(std::memory_order_relaxed);
        std::string bound = i < histogram->bounds_.size() ? Number(histogram->bounds_[i]) : "+Inf";
        AppendSample(out, name + "_bucket", fmt::format("{}{}le=\"{}\"", labels, comma, bound),
                     fmt::format("{}", seen));
      }
      AppendSample(out, name + "_sum", labels, Number(histogram->sum_.load(std::memory_order_relaxed)));
      AppendSample(out, name + "_count", labels, fmt::format("{}", seen));
    }
  }
  return out;
}

}  // namespace millrace::metrics
