#include "millrace/engine/options/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace::engine {
namespace {

using Shape = Schedule::Shape;

TEST(Schedule, WarmsUpAndComesDown) {
  const Schedule s{.shape = Shape::kCosine, .lr = 1, .min_lr = 0.1, .warmup_steps = 10, .total_steps = 110};
  EXPECT_DOUBLE_EQ(s.At(0), 0.1);
  EXPECT_DOUBLE_EQ(s.At(9), 1);
  EXPECT_DOUBLE_EQ(s.At(10), 1);
  EXPECT_NEAR(s.At(60), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(s.At(110), 0.1);
  EXPECT_DOUBLE_EQ(s.At(1000), 0.1);
  const Schedule flat{.shape = Shape::kConstant, .lr = 2, .warmup_steps = 2};
  EXPECT_DOUBLE_EQ(flat.At(0), 1);
  EXPECT_DOUBLE_EQ(flat.At(999), 2);
}

struct Point {
  std::uint64_t step;
  double lr;
};
struct TransformersTable {
  const char* name;  ///< of transformers.get_scheduler
  Schedule schedule;
  std::vector<Point> points;
};

/// Learning rates that transformers 5.23 sets at lr 2, 4 warm-up steps and 20 steps in all. Its warm-up is one step
/// behind: step s has s/4 of the rate, here (s + 1)/4. So points of the warm-up are compared one step later.
TEST(Schedule, HasTheRatesOfTransformers) {
  const Schedule base{.lr = 2, .warmup_steps = 4, .total_steps = 20};
  const auto with = [&](Shape shape, double min_lr) {
    Schedule schedule = base;
    schedule.shape = shape;
    schedule.min_lr = min_lr;
    return schedule;
  };
  Schedule squared = with(Shape::kPolynomial, 0.1), scaled = with(Shape::kInverseSqrt, 0);
  squared.power = 2;
  scaled.timescale = 9;
  Schedule stable = with(Shape::kWarmupStableDecay, 0.1);
  stable.stable_share = 0.5;
  Schedule stable_linear = stable;
  stable_linear.decay = Schedule::Decay::kLinear;
  const TransformersTable tables[] = {
      {"constant_with_warmup", with(Shape::kConstant, 0), {{1, 0.5}, {3, 1.5}, {4, 2}, {5, 2}, {19, 2}, {25, 2}}},
      {"linear",
       with(Shape::kLinear, 0),
       {{1, 0.5}, {3, 1.5}, {4, 2}, {5, 1.875}, {10, 1.25}, {15, 0.625}, {19, 0.125}, {20, 0}, {25, 0}}},
      {"cosine",
       with(Shape::kCosine, 0),
       {{3, 1.5}, {4, 2}, {5, 1.9807852804}, {10, 1.38268343237}, {15, 0.44442976698}, {19, 0.0192147195968}, {20, 0}}},
      {"cosine_with_min_lr",
       with(Shape::kCosine, 0.1),
       {{4, 2}, {5, 1.98174601638}, {10, 1.41354926075}, {15, 0.522208278631}, {19, 0.118253983617}, {20, 0.1}}},
      {"polynomial",
       squared,
       {{4, 2}, {5, 1.769921875}, {10, 0.8421875}, {15, 0.285546875}, {19, 0.107421875}, {20, 0.1}, {25, 0.1}}},
      {"inverse_sqrt",
       with(Shape::kInverseSqrt, 0),
       {{4, 2}, {5, 1.788854382}, {10, 1.26491106407}, {15, 1.03279555899}, {20, 0.894427191}, {25, 0.8}}},
      {"inverse_sqrt with timescale",
       scaled,
       {{4, 2}, {5, 1.8973665961}, {10, 1.54919333848}, {19, 1.22474487139}, {20, 1.2}, {25, 1.09544511501}}},
      {"warmup_stable_decay linear",
       stable_linear,
       {{4, 2}, {5, 2}, {10, 2}, {15, 1.05}, {19, 0.29}, {20, 0.1}, {25, 0.1}}},
      {"warmup_stable_decay 1-sqrt",
       stable,
       {{4, 2}, {5, 2}, {10, 2}, {15, 0.656497115746}, {19, 0.197501733704}, {20, 0.1}, {25, 0.1}}}};
  for (const TransformersTable& table : tables) {
    for (const auto& [step, lr] : table.points) {
      const std::uint64_t ours = step < base.warmup_steps ? step - 1 : step;
      EXPECT_NEAR(table.schedule.At(ours), lr, 1e-10) << table.name << " at step " << step;
    }
  }
}

TEST(Schedule, EdgesAreDefined) {
  Schedule s{.shape = Shape::kInverseSqrt, .lr = 1, .min_lr = 0.5, .total_steps = 10};
  EXPECT_DOUBLE_EQ(s.At(0), 1);
  EXPECT_NEAR(s.At(10'000), std::sqrt(0.5), 1e-12) << "the time scale of a run without a warm-up";
  EXPECT_DOUBLE_EQ(s.At(1'000'000), 0.5) << "never below min_lr";
  s = {.shape = Shape::kWarmupStableDecay, .lr = 1, .warmup_steps = 8, .total_steps = 10, .stable_share = 0.5};
  EXPECT_DOUBLE_EQ(s.At(8), 1) << "the decay does not begin in the warm-up";
  EXPECT_LT(s.At(9), 1);
  for (const Shape shape : {Shape::kCosine, Shape::kLinear, Shape::kPolynomial, Shape::kWarmupStableDecay}) {
    s = {.shape = shape, .lr = 1, .min_lr = 0.1, .warmup_steps = 10, .total_steps = 10};
    EXPECT_DOUBLE_EQ(s.At(9), 1) << "all of it is warm-up";
    EXPECT_DOUBLE_EQ(s.At(10), 0.1);
  }
}

TEST(Schedule, AShareOfTheStepsWarmsUp) {
  EXPECT_EQ(WarmupSteps(0.1, 1000), 100u);
  EXPECT_EQ(WarmupSteps(0.03, 110), 4u) << "rounded up";
  EXPECT_EQ(WarmupSteps(0, 110), 0u);
}

}  // namespace
}  // namespace millrace::engine
