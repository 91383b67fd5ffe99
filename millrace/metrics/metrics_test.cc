#include "millrace/metrics/metrics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

namespace millrace::metrics {
namespace {

using ::testing::HasSubstr;

TEST(Registry, WritesCountersAndGaugesInOrderOfName) {
  Registry registry;
  registry.AddGauge("train_loss", "Loss of the last step").Set(2.5);
  registry.AddCounter("requests_total", "Requests", {{"code", "200"}}).Add(3);
  registry.AddCounter("requests_total", "Requests", {{"code", "404"}}).Add();
  EXPECT_EQ(registry.PrometheusText(),
            "# HELP requests_total Requests\n"
            "# TYPE requests_total counter\n"
            "requests_total{code=\"200\"} 3\n"
            "requests_total{code=\"404\"} 1\n"
            "# HELP train_loss Loss of the last step\n"
            "# TYPE train_loss gauge\n"
            "train_loss 2.5\n");
}

TEST(Registry, TheSameNameAndLabelsAreTheSameMetric) {
  Registry registry;
  Counter& one = registry.AddCounter("n", "", {{"a", "1"}});
  EXPECT_EQ(&one, &registry.AddCounter("n", "", {{"a", "1"}}));
  EXPECT_NE(&one, &registry.AddCounter("n", "", {{"a", "2"}}));
}

TEST(Registry, EscapesLabelsAndHelp) {
  Registry registry;
  registry.AddGauge("g", "a \"quoted\" \\ path\nsecond line", {{"path", "C:\\x \"y\"\nz"}}).Set(1);
  std::string text = registry.PrometheusText();
  EXPECT_THAT(text, HasSubstr("# HELP g a \"quoted\" \\\\ path\\nsecond line\n"));
  EXPECT_THAT(text, HasSubstr("g{path=\"C:\\\\x \\\"y\\\"\\nz\"} 1\n"));
}

TEST(Registry, WritesSpecialNumbers) {
  Registry registry;
  registry.AddGauge("a", "").Set(NAN);
  registry.AddGauge("b", "").Set(INFINITY);
  registry.AddGauge("c", "").Set(-INFINITY);
  std::string text = registry.PrometheusText();
  EXPECT_THAT(text, HasSubstr("a NaN\n"));
  EXPECT_THAT(text, HasSubstr("b +Inf\n"));
  EXPECT_THAT(text, HasSubstr("c -Inf\n"));
}

TEST(Histogram, BucketsAreCumulativeAndBoundsInclusive) {
  Registry registry;
  Histogram& latency = registry.AddHistogram("latency_seconds", "Latency", {0.1, 1, 10}, {{"op", "get"}});
  for (double value : {0.05, 0.1, 0.5, 100.0}) latency.Observe(value);
  EXPECT_THAT(registry.PrometheusText(), HasSubstr("latency_seconds_bucket{op=\"get\",le=\"0.1\"} 2\n"
                                                   "latency_seconds_bucket{op=\"get\",le=\"1\"} 3\n"
                                                   "latency_seconds_bucket{op=\"get\",le=\"10\"} 3\n"
                                                   "latency_seconds_bucket{op=\"get\",le=\"+Inf\"} 4\n"
                                                   "latency_seconds_sum{op=\"get\"} 100.65\n"
                                                   "latency_seconds_count{op=\"get\"} 4\n"));
}

TEST(Histogram, CountsEveryObservationOfEveryThread) {
  Registry registry;
  Histogram& histogram = registry.AddHistogram("h", "", {0.5});
  Counter& counter = registry.AddCounter("c", "");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        histogram.Observe(i % 2);
        counter.Add();
      }
    });
  }
  registry.PrometheusText();  // may run at any time
  for (std::thread& thread : threads) thread.join();
  std::string text = registry.PrometheusText();
  EXPECT_THAT(text, HasSubstr("h_bucket{le=\"0.5\"} 2000\nh_bucket{le=\"+Inf\"} 4000\nh_sum 2000\nh_count 4000\n"));
  EXPECT_THAT(text, HasSubstr("c 4000\n"));
}

}  // namespace
}  // namespace millrace::metrics
