// The learning rate over the steps of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::engine {

/// A linear warm-up to `lr`, then one of six shapes. A value type. README.md has the formulas and transformers' names.
struct Schedule {
  enum class Shape { kConstant, kCosine, kLinear, kPolynomial, kWarmupStableDecay, kInverseSqrt };
  /// The fall of the rate in the last phase of kWarmupStableDecay.
  enum class Decay { kLinear, kOneMinusSqrt };
  Shape shape = Shape::kCosine;
  double lr = 3e-4;
  double min_lr = 0;  ///< where it ends; for kInverseSqrt a lower bound; not of kConstant
  std::uint64_t warmup_steps = 0, total_steps = 0;
  double power = 1;                    ///< of kPolynomial
  double stable_share = 0.9;           ///< of kWarmupStableDecay: the share of total_steps before the decay
  Decay decay = Decay::kOneMinusSqrt;  ///< of kWarmupStableDecay
  std::uint64_t timescale = 0;         ///< of kInverseSqrt, in steps; 0: warmup_steps, or 10,000 without a warm-up

  bool operator==(const Schedule&) const = default;

  /// Returns the learning rate of step 0, 1, …. While warming up it is (step + 1)/warmup_steps of `lr`.
  double At(std::uint64_t step) const;
};

/// "constant", "cosine", "linear", "polynomial", "wsd", "inverse_sqrt"
std::string_view ScheduleShapeName(Schedule::Shape shape);
std::optional<Schedule::Shape> ParseScheduleShape(std::string_view name);
/// "linear", "1-sqrt"
std::string_view ScheduleDecayName(Schedule::Decay decay);
std::optional<Schedule::Decay> ParseScheduleDecay(std::string_view name);

/// Returns the steps of a warm-up that is a share of the run, rounded up as in transformers.
std::uint64_t WarmupSteps(double proportion, std::uint64_t total_steps);

}  // namespace millrace::engine
