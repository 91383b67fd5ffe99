// The metrics of a running process: counters, gauges and histograms, and their Prometheus text.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

/// A number that only grows. Lock-free.
class Counter {
 public:
  void Add(std::uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// A number that goes up and down. Lock-free.
class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// A distribution over buckets with fixed upper bounds. Lock-free.
class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void Observe(double value);
  struct Totals {
    std::uint64_t count = 0;
    double sum = 0;
  };
  Totals totals() const;
  /// Returns an estimate of the q-quantile (q in 0…1). Interpolates linearly within a bucket; the first bucket begins
  /// at 0. Returns the last bound for values beyond it, and 0 if nothing was observed.
  double Quantile(double q) const;

 private:
  friend class Registry;
  const std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> buckets_;
  std::atomic<double> sum_{0};
};

/// Owns a process's metrics. The references that it returns are valid as long as it lives. The same name and labels
/// return the same metric. Thread-safe.
class Registry {
 public:
  Counter& AddCounter(std::string name, std::string help, Labels labels = {});
  Gauge& AddGauge(std::string name, std::string help, Labels labels = {});
  Histogram& AddHistogram(std::string name, std::string help, std::vector<double> upper_bounds, Labels labels = {});
  /// Returns all metrics in Prometheus text exposition format 0.0.4.
  std::string PrometheusText() const;

 private:
  struct Family;
  Family& FamilyOf(std::string name, std::string help, std::string_view type) MR_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Family>> families_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::metrics
