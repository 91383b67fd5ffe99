#include "millrace/eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace millrace::eval {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Metric Mean::Result(std::string name) const {
  const auto n = static_cast<double>(count_);
  const double mean = sum_ / n;
  const double variance = count_ > 1 ? std::max(0.0, squares_ - n * mean * mean) / (n - 1) : kUnknown;
  return {std::move(name), mean, std::sqrt(variance / n)};
}

RatioOfSums::Ratio RatioOfSums::Sum() const {
  double a = 0, b = 0, squares = 0;
  for (const Pair& pair : pairs_) {
    a += pair.a;
    b += pair.b;
  }
  const double ratio = a / b, n = static_cast<double>(pairs_.size());
  for (const Pair& pair : pairs_) squares += (pair.a - ratio * pair.b) * (pair.a - ratio * pair.b);
  const double variance = pairs_.size() > 1 ? squares / (n - 1) * n / (b * b) : kUnknown;
  return {ratio, std::sqrt(variance)};
}

Metric RatioOfSums::Perplexity(std::string name) const {
  const Ratio ratio = Sum();
  const double value = std::exp(-ratio.value);
  return {std::move(name), value, value * ratio.standard_error};
}

Metric RatioOfSums::Bits(std::string name) const {
  const Ratio ratio = Sum();
  return {std::move(name), -ratio.value / std::numbers::ln2, ratio.standard_error / std::numbers::ln2};
}

}  // namespace millrace::eval
