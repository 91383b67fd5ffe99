#include "millrace/engine/ops/cpu/row_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace millrace::engine::cpu {
namespace {

template <class T>
class RowProductTest : public ::testing::Test {
 protected:
  std::vector<T> Draw(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) value = FromFloat<T>(std::normal_distribution<float>()(random_));
    return values;
  }
  std::mt19937 random_{3};
};
using RowTypes = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RowProductTest, RowTypes);

TYPED_TEST(RowProductTest, EachElementIsItsSum) {
  using T = TypeParam;
  for (const std::int64_t inner : {1, 16, 31, 512, 1100}) {
    for (const std::int64_t columns : {1, 3, 32, 77}) {
      for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 23, 130}) {
        const std::vector<T> x = this->Draw(rows * inner), weight = this->Draw(columns * inner);
        const std::vector<T> bias = this->Draw(columns);
        std::vector<T> out(static_cast<std::size_t>(rows * columns));
        const RowProduct<T> product{x.data(), weight.data(), columns == 3 ? nullptr : bias.data(), out.data(), rows,
                                    columns,  inner};
        product.Run(0, std::min(kProductColumns, columns));
        product.Run(kProductColumns, std::max(kProductColumns, columns));
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t column = 0; column < columns; ++column) {
            double sum = columns == 3 ? 0 : ToFloat(bias[static_cast<std::size_t>(column)]);
            for (std::int64_t k = 0; k < inner; ++k) {
              sum += static_cast<double>(ToFloat(x[static_cast<std::size_t>(row * inner + k)])) *
                     ToFloat(weight[static_cast<std::size_t>(column * inner + k)]);
            }
            const double tolerance =
                (std::is_same_v<T, float> ? 1e-6 : 8e-3) * (1 + std::sqrt(double(inner)) + std::abs(sum));
            ASSERT_NEAR(ToFloat(out[static_cast<std::size_t>(row * columns + column)]), sum, tolerance)
                << row << ", " << column << " of " << rows << " x " << columns << " x " << inner;
          }
        }
      }
    }
  }
}

TYPED_TEST(RowProductTest, ARowHasTheSameBitsBesideOthers) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 131, kColumns = 45, kInner = 1077;
  const std::vector<T> x = this->Draw(kRows * kInner), weight = this->Draw(kColumns * kInner);
  std::vector<T> together(kRows * kColumns), alone(kColumns);
  RowProduct<T>{x.data(), weight.data(), nullptr, together.data(), kRows, kColumns, kInner}.Run(0, kColumns);
  for (std::int64_t row = 0; row < kRows; ++row) {
    RowProduct<T>{x.data() + row * kInner, weight.data(), nullptr, alone.data(), 1, kColumns, kInner}.Run(0, kColumns);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * kColumns)) << row;
  }
}

}  // namespace
}  // namespace millrace::engine::cpu
