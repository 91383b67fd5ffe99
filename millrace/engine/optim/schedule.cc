#include "millrace/engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::engine {
namespace {

constexpr std::uint64_t kDefaultTimescale = 10'000;  // transformers' for inverse_sqrt without a warm-up

/// Returns which share of the way from min_lr to lr is left after `progress`, from 0 to 1, of the decay.
double ShareLeft(const Schedule& schedule, double progress) {
  if (schedule.shape == Schedule::Shape::kCosine) return 0.5 * (1 + std::cos(std::numbers::pi * progress));
  if (schedule.shape == Schedule::Shape::kPolynomial) return std::pow(1 - progress, schedule.power);
  const bool stable = schedule.shape == Schedule::Shape::kWarmupStableDecay;
  if (stable && schedule.decay == Schedule::Decay::kOneMinusSqrt) return 1 - std::sqrt(progress);
  return 1 - progress;
}

}  // namespace

double Schedule::At(std::uint64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == Shape::kConstant) return lr;
  if (shape == Shape::kInverseSqrt) {
    const std::uint64_t scale = timescale > 0 ? timescale : warmup_steps > 0 ? warmup_steps : kDefaultTimescale;
    const auto since = static_cast<double>(step - warmup_steps);
    return std::max(min_lr, lr / std::sqrt(1 + since / static_cast<double>(scale)));
  }
  if (step >= total_steps) return min_lr;
  std::uint64_t begin = warmup_steps;
  if (shape == Shape::kWarmupStableDecay) {
    begin = std::max(begin, static_cast<std::uint64_t>(std::llround(stable_share * static_cast<double>(total_steps))));
    if (step < begin) return lr;
  }
  const double progress = static_cast<double>(step - begin) / static_cast<double>(total_steps - begin);
  return min_lr + (lr - min_lr) * ShareLeft(*this, progress);
}

std::uint64_t WarmupSteps(double proportion, std::uint64_t total_steps) {
  return static_cast<std::uint64_t>(std::ceil(proportion * static_cast<double>(total_steps)));
}

}  // namespace millrace::engine
