// The factor of the loss in training with float16.
#pragma once

#include <cstdint>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::train {

/// Float16 has no numbers below 6e-8, so gradients of hidden states would become zero. A factor of the loss makes them
/// larger (Micikevicius et al. 2018). It is halved when a gradient is infinite, and doubled after a number of steps
/// without one. All ranks make the same calls. Plain arithmetic.
class LossScale {
 public:
  static constexpr double kFirst = 65'536;
  static constexpr int kGoodSteps = 2'000;  ///< before it is doubled
  static constexpr double kLeast = 1.0 / 16'384;

  explicit LossScale(double first = kFirst) : value_(first) {}

  double value() const { return value_; }
  /// Takes note of a step whose gradients were finite, or were not: such a step must not be learnt from.
  void Update(bool finite);
  /// Returns whether gradients were infinite so often that they would be without any factor.
  bool is_hopeless() const { return value_ < kLeast; }

  /// Returns the state that a checkpoint needs, so that a resumed run computes the same bits.
  Json ToJson() const;
  /// Errors: kCorrupt.
  Status Restore(const Json& json);

 private:
  double value_;
  int good_steps_ = 0;  ///< since the factor last changed
};

}  // namespace millrace::train
