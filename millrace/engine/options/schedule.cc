#include "millrace/engine/options/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "millrace/engine/options/named.h"

namespace millrace::engine {
namespace {

constexpr std::uint64_t kDefaultTimescale = 10'000;  // transformers' for inverse_sqrt without a warm-up

// In the order of the enumerators.
constexpr std::array<std::string_view, 6> kShapeNames = {"constant",   "cosine", "linear",
                                                         "polynomial", "wsd",    "inverse_sqrt"};
constexpr std::array<std::string_view, 2> kDecayNames = {"linear", "1-sqrt"};

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

std::string_view ScheduleShapeName(Schedule::Shape shape) { return NameOf(kShapeNames, shape); }
std::optional<Schedule::Shape> ParseScheduleShape(std::string_view name) {
  return Named<Schedule::Shape>(kShapeNames, name);
}
std::string_view ScheduleDecayName(Schedule::Decay decay) { return NameOf(kDecayNames, decay); }
std::optional<Schedule::Decay> ParseScheduleDecay(std::string_view name) {
  return Named<Schedule::Decay>(kDecayNames, name);
}

}  // namespace millrace::engine
