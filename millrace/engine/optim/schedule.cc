#include "millrace/engine/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace millrace::engine {

double Schedule::At(std::uint64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == Shape::kConstant) return lr;
  if (step >= total_steps) return min_lr;
  const double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace millrace::engine
