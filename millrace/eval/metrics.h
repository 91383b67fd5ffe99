// Metrics with their standard errors, as lm-evaluation-harness defines them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::eval {

/// A number that was measured on a sample of documents.
struct Metric {
  std::string name;
  double value = 0;
  double standard_error = 0;  ///< NaN if one document is all there is
};

/// The mean of a number of each document. Its standard error is s / sqrt(n), with s² = Σ(x - mean)² / (n - 1).
class Mean {
 public:
  void Add(double x) {
    ++count_;
    sum_ += x;
    squares_ += x * x;
  }
  std::int64_t count() const { return count_; }
  Metric Result(std::string name) const;

 private:
  std::int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
};

/// The log-likelihoods of whole documents, and their lengths in some unit.
class RatioOfSums {
 public:
  void Add(double numerator, double denominator) { pairs_.push_back({numerator, denominator}); }
  /// exp(-Σa / Σb). The standard error is that of the ratio (linearised, Cochran 1977, "Sampling Techniques", 6.2)
  /// times the result.
  Metric Perplexity(std::string name) const;
  /// -Σa / Σb / log(2).
  Metric Bits(std::string name) const;

 private:
  struct Pair {
    double a = 0, b = 0;
  };
  struct Ratio {
    double value = 0, standard_error = 0;
  };
  Ratio Sum() const;
  std::vector<Pair> pairs_;
};

}  // namespace millrace::eval
