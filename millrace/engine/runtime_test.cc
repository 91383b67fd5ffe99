#include "millrace/engine/runtime.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

TEST(LimitThreads, SmallProductsGetFewerThreads) {
  const int before = at::get_num_threads();
  const auto threads_for = [](double flops) {
    at::set_num_threads(8);
    LimitThreads(flops);
    return at::get_num_threads();
  };
  EXPECT_EQ(threads_for(0), 1);
  EXPECT_EQ(threads_for(7.5e6), 1);
  EXPECT_EQ(threads_for(50e6), 3);
  EXPECT_EQ(threads_for(1e12), 8);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace millrace::engine
