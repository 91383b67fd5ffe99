#include "millrace/history/logged_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::history {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint64_t> LastSteps(const LoggedMetrics& metrics, const std::string& name) {
  std::vector<std::uint64_t> steps;
  for (const MetricPoint& point : metrics.series().at(name).points) steps.push_back(point.last_step);
  return steps;
}

TEST(LoggedMetricsTest, KeepsValuesOfEachMetricByStep) {
  LoggedMetrics metrics;
  for (std::uint64_t step = 1; step <= 3; ++step) metrics.Add("loss", step, 1.0 / static_cast<double>(step));
  metrics.Add("seconds", 3, 12.5);
  EXPECT_EQ(LastSteps(metrics, "loss"), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(metrics.series().at("loss").points[1].mean, 0.5);
  EXPECT_EQ(metrics.series().at("seconds").latest, 12.5);
}

TEST(LoggedMetricsTest, AveragesTheValuesOfOneStep) {
  LoggedMetrics metrics;
  for (const double value : {1.0, 2.0, 6.0}) metrics.Add("loss", 5, value);
  EXPECT_EQ(metrics.series().at("loss").points, (std::vector<MetricPoint>{{5, 5, 3, 3.0}}));
  EXPECT_EQ(metrics.series().at("loss").latest, 6);
}

TEST(LoggedMetricsTest, DropsWhatARunMakesAgain) {
  LoggedMetrics metrics;
  for (std::uint64_t step = 1; step <= 6; ++step) metrics.Add("loss", step, 1);
  metrics.Add("late", 6, 1);
  LoggedMetrics went_back = metrics;
  went_back.Add("loss", 4, 2);
  EXPECT_EQ(LastSteps(went_back, "loss"), (std::vector<std::uint64_t>{1, 2, 3, 4}));
  metrics.DropAfter(2);
  EXPECT_EQ(LastSteps(metrics, "loss"), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_FALSE(metrics.series().contains("late"));
}

TEST(LoggedMetricsTest, StaysSmallHoweverLongTheRunIs) {
  LoggedMetrics metrics;
  constexpr std::uint64_t kSteps = 100'000;
  for (std::uint64_t step = 1; step <= kSteps; ++step) metrics.Add("step", step, static_cast<double>(step));
  const std::vector<MetricPoint>& points = metrics.series().at("step").points;
  EXPECT_LE(points.size(), LoggedMetrics::kMaxPoints);
  EXPECT_GE(points.size(), LoggedMetrics::kMaxPoints / 2 - 1);
  std::uint64_t values = 0;
  double sum = 0;
  for (const MetricPoint& point : points) {
    values += point.values;
    sum += point.mean * static_cast<double>(point.values);
  }
  EXPECT_EQ(values, kSteps);
  EXPECT_DOUBLE_EQ(sum, kSteps * (kSteps + 1) / 2.0);
  for (std::size_t i = 0; i <= LoggedMetrics::kMaxSeries; ++i) metrics.Add("metric " + std::to_string(i), 1, 1);
  EXPECT_EQ(metrics.series().size(), LoggedMetrics::kMaxSeries);
}

TEST(LoggedMetricsTest, ReadsWhatItHasWritten) {
  LoggedMetrics metrics;
  for (std::uint64_t step = 1; step <= 1000; ++step) metrics.Add("loss \"a\"", step, 0.1 * static_cast<double>(step));
  metrics.Add("other", 7, -1e-30);
  const auto read = LoggedMetrics::Parse(DumpJson(metrics.ToJson()), "the file");
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(*read, metrics);
}

TEST(LoggedMetricsTest, RefusesWhatIsNone) {
  LoggedMetrics metrics;
  metrics.Add("loss", 1, 1);
  Json no_points = metrics.ToJson(), backwards = metrics.ToJson(), other_version = metrics.ToJson();
  no_points["metrics"]["loss"]["points"] = Json::array();
  backwards["metrics"]["loss"]["points"][0]["first_step"] = 2;
  other_version["version"] = 2;
  for (const Json& json : {no_points, backwards, other_version, Json::array()}) {
    const auto read = LoggedMetrics::Parse(DumpJson(json), "the file");
    ASSERT_FALSE(read) << DumpJson(json);
    EXPECT_EQ(read.error().code(), Code::kCorrupt);
    EXPECT_THAT(read.error().ToString(), HasSubstr("the file"));
  }
}

TEST(LoggedMetrics, AreReadByPrometheus) {
  LoggedMetrics metrics;
  EXPECT_EQ(metrics.PrometheusText(), "");
  metrics.Add("a \"b\" \\", 1, 0.5);
  metrics.Add("loss", 1, 3);
  metrics.Add("loss", 2, 2.25);
  EXPECT_EQ(metrics.PrometheusText(),
            "# HELP millrace_logged_metric The latest value of a metric of log.metric_definitions\n"
            "# TYPE millrace_logged_metric gauge\n"
            "millrace_logged_metric{name=\"a \\\"b\\\" \\\\\"} 0.5\n"
            "millrace_logged_metric{name=\"loss\"} 2.25\n");
}

}  // namespace
}  // namespace millrace::history
