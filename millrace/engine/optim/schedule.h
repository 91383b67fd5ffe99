// The learning rate over the steps of a run.
#pragma once

#include <cstdint>

namespace millrace::engine {

/// A linear warm-up to `lr`, then a constant or a cosine. A value type.
struct Schedule {
  enum class Shape { kConstant, kCosine };
  Shape shape = Shape::kCosine;
  double lr = 3e-4, min_lr = 0;
  std::uint64_t warmup_steps = 0, total_steps = 0;

  /// Returns the learning rate of step 0, 1, …. While warming up it is (step + 1)/warmup_steps of `lr`. Then it is `lr`
  /// (kConstant), or falls along half a cosine to `min_lr` at total_steps (kCosine).
  double At(std::uint64_t step) const;
};

}  // namespace millrace::engine
