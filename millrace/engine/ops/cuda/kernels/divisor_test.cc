#include "millrace/engine/ops/cuda/kernels/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace::engine::cuda {
namespace {

void ExpectQuotient(std::int64_t i, std::int64_t value) {
  const Quotient got = Divisor(value).Divide(i);
  ASSERT_EQ(got.quotient, i / value) << i << " / " << value;
  ASSERT_EQ(got.rest, i % value) << i << " / " << value;
}

TEST(DivisorTest, DividesAsTheProcessorDoes) {
  constexpr std::int64_t kWord = std::int64_t{1} << 32;
  std::vector<std::int64_t> values = {1, 2, 3, 5, 7, 641, 1376, 65'535, 65'536, 65'537, kWord / 3, kWord / 2};
  for (const std::int64_t around : {kWord / 2, kWord}) {
    for (std::int64_t by = -3; by <= 3; ++by) values.push_back(around + by);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) values.push_back(1 + static_cast<std::int64_t>(random() >> (32 + i % 31)));
  for (const std::int64_t value : values) {
    for (const std::int64_t near : {std::int64_t{0}, value, 2 * value, kWord / value * value, kWord - 1, kWord,
                                    kWord * std::min<std::int64_t>(value, 1000), kWord * 1000}) {
      for (std::int64_t i = std::max<std::int64_t>(0, near - 2); i <= near + 2; ++i) ExpectQuotient(i, value);
    }
    for (int i = 0; i < 100; ++i) ExpectQuotient(static_cast<std::int64_t>(random() >> 32), value);
  }
}

}  // namespace
}  // namespace millrace::engine::cuda
