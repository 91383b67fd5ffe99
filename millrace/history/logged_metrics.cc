#include "millrace/history/logged_metrics.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::history {
namespace {

constexpr int kMetricsVersion = 1;

void JoinNext(MetricPoint& point, const MetricPoint& next) {
  const auto before = static_cast<double>(point.values), more = static_cast<double>(next.values);
  point.mean = (point.mean * before + next.mean * more) / (before + more);
  point.values += next.values;
  point.last_step = next.last_step;
}

void HalvePoints(MetricSeries& series) {
  std::vector<MetricPoint> joined;
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    if (i % 2 == 0) {
      joined.push_back(series.points[i]);
    } else {
      JoinNext(joined.back(), series.points[i]);
    }
  }
  series.points = std::move(joined);
  series.stride *= 2;
}

Result<MetricSeries> SeriesFromJson(const Json& json) {
  MetricSeries series;
  series.stride = MR_TRY(JsonUint(json, "stride"));
  series.latest = MR_TRY(JsonNumber(json, "latest"));
  const Json* points = JsonFind(json, "points");
  if (points == nullptr || !points->is_array() || points->empty() || points->size() > LoggedMetrics::kMaxPoints) {
    return Fail(Code::kCorrupt, "has no list of 1 to {} points", LoggedMetrics::kMaxPoints);
  }
  for (const Json& each : *points) {
    MetricPoint point;
    point.first_step = MR_TRY(JsonUint(each, "first_step"));
    point.last_step = MR_TRY(JsonUint(each, "last_step"));
    point.values = MR_TRY(JsonUint(each, "values"));
    point.mean = MR_TRY(JsonNumber(each, "mean"));
    if (point.values == 0 || point.last_step < point.first_step) return Fail(Code::kCorrupt, "has an empty point");
    series.points.push_back(point);
  }
  return series;
}

}  // namespace

void LoggedMetrics::Add(const std::string& name, std::uint64_t step, double value) {
  if (!series_.contains(name) && series_.size() >= kMaxSeries) return;
  MetricSeries& series = series_[name];
  series.latest = value;
  std::erase_if(series.points, [&](const MetricPoint& point) { return point.last_step > step; });
  const MetricPoint next{.first_step = step, .last_step = step, .values = 1, .mean = value};
  if (!series.points.empty() &&
      (series.points.back().last_step == step || series.points.back().values < series.stride)) {
    return JoinNext(series.points.back(), next);
  }
  series.points.push_back(next);
  if (series.points.size() > kMaxPoints) HalvePoints(series);
}

void LoggedMetrics::DropAfter(std::uint64_t step) {
  for (auto& [name, series] : series_) {
    if (series.points.back().last_step <= step) continue;
    std::erase_if(series.points, [&](const MetricPoint& point) { return point.last_step > step; });
    if (!series.points.empty()) series.latest = series.points.back().mean;
  }
  std::erase_if(series_, [](const auto& named) { return named.second.points.empty(); });
}

std::string LoggedMetrics::PrometheusText() const {
  if (series_.empty()) return "";
  std::string text =
      "# HELP millrace_logged_metric The latest value of a metric of log.metric_definitions\n"
      "# TYPE millrace_logged_metric gauge\n";
  for (const auto& [name, series] : series_) {
    text += "millrace_logged_metric{name=\"";
    for (const char c : name) {
      if (c == '\\' || c == '"') text += '\\';
      text += c == '\n' ? ' ' : c;
    }
    text += fmt::format("\"}} {}\n", series.latest);
  }
  return text;
}

Json LoggedMetrics::ToJson() const {
  Json metrics = Json::object();
  for (const auto& [name, series] : series_) {
    Json points = Json::array();
    for (const MetricPoint& point : series.points) {
      points.push_back({{"first_step", point.first_step},
                        {"last_step", point.last_step},
                        {"values", point.values},
                        {"mean", point.mean}});
    }
    metrics[name] = {{"stride", series.stride}, {"latest", series.latest}, {"points", std::move(points)}};
  }
  return {{"version", kMetricsVersion}, {"metrics", std::move(metrics)}};
}

Result<LoggedMetrics> LoggedMetrics::Parse(std::string_view text, std::string_view what) {
  const auto parse = [&]() -> Result<LoggedMetrics> {
    const Json json = MR_TRY(ParseJson(text, what, {.bytes = kMaxMetricsBytes}));
    if (MR_TRY(JsonInt(json, "version")) != kMetricsVersion) {
      return Fail(Code::kCorrupt, "is of another version of Millrace");
    }
    const Json* metrics = JsonFind(json, "metrics");
    if (metrics == nullptr || !metrics->is_object() || metrics->size() > kMaxSeries) {
      return Fail(Code::kCorrupt, "has no map of at most {} metrics", kMaxSeries);
    }
    LoggedMetrics logged;
    for (const auto& [name, series] : metrics->items()) logged.series_[name] = MR_TRY(SeriesFromJson(series));
    return logged;
  };
  auto logged = parse();
  if (!logged) return Fail(logged.error().Context(std::string(what)).WithCode(Code::kCorrupt));
  return logged;
}

}  // namespace millrace::history
