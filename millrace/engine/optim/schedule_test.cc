#include "millrace/engine/optim/schedule.h"

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

}  // namespace
}  // namespace millrace::engine
