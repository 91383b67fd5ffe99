// Products against sums in double, for all readings of the operands.
#include "millrace/engine/ops/cpu/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

namespace millrace::engine::cpu {
namespace {

template <class T>
class GemmTest : public ::testing::Test {
  void SetUp() override {
    if (std::is_same_v<T, Bf16> && !MultipliesBf16()) GTEST_SKIP() << "this processor does not multiply bfloat16";
  }
};
using ElementTypes = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(GemmTest, ElementTypes);

std::mt19937& Generator() {
  static std::mt19937 generator(7);
  return generator;
}
std::int64_t Draw(std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(Generator());
}

/// An operand of a product with its own memory.
template <class T>
struct Operand {
  std::int64_t rows, columns;
  bool transposed;
  std::int64_t stride;
  std::vector<T> data;

  Operand(std::int64_t row_count, std::int64_t column_count, bool read_transposed)
      : rows(row_count),
        columns(column_count),
        transposed(read_transposed),
        stride((transposed ? rows : columns) + Draw(0, 3)),
        data(static_cast<std::size_t>((transposed ? columns : rows) * stride)) {
    std::normal_distribution<float> normal;
    for (T& x : data) x = FromFloat<T>(normal(Generator()));
  }
  Matrix<T> matrix() const { return {data.data(), stride, transposed}; }
  double At(std::int64_t row, std::int64_t column) const {
    return ToFloat(data[static_cast<std::size_t>(transposed ? column * stride + row : row * stride + column)]);
  }
};

/// alpha · a · b + beta · c + bias, and how far float32 may be from it.
struct Expected {
  double value = 0, terms = 0;
  double tolerance(std::int64_t inner) const { return 1e-7 * terms * std::sqrt(static_cast<double>(inner) + 4) + 1e-6; }
};
template <class T>
Expected Sum(const Operand<T>& a, const Operand<T>& b, std::int64_t row, std::int64_t column) {
  Expected sum;
  for (std::int64_t i = 0; i < a.columns; ++i) {
    sum.value += a.At(row, i) * b.At(i, column);
    sum.terms += std::abs(a.At(row, i) * b.At(i, column));
  }
  return sum;
}

TYPED_TEST(GemmTest, SumsAreThoseOfDoubles) {
  for (int round = 0; round < 60; ++round) {
    ProductSize size{Draw(1, 90), Draw(1, 90), Draw(1, 150)};
    const std::int64_t stride = size.columns + Draw(0, 1) * 16;
    if (stride != size.columns) size.out_stride = stride;
    const Operand<TypeParam> a(size.rows, size.inner, Draw(0, 1) == 1), b(size.inner, size.columns, Draw(0, 1) == 1);
    const float alpha = Draw(0, 1) == 1 ? 1.0F : 0.37F, beta = static_cast<float>(Draw(0, 2)) / 2;
    // Without beta, what stood there before is not read.
    std::vector<float> before(static_cast<std::size_t>(size.rows * stride), beta == 0 ? NAN : 0.0F);
    if (beta != 0) std::ranges::generate(before, [] { return static_cast<float>(Draw(-9, 9)); });
    std::vector<float> c = before;
    Multiply<TypeParam>(alpha, a.matrix(), b.matrix(), beta, c.data(), size);
    const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    for (std::int64_t row = 0; row < size.rows; ++row) {
      for (std::int64_t column = size.columns; column < stride; ++column) {
        const auto at = static_cast<std::size_t>(row * stride + column);
        ASSERT_PRED2(same, c[at], before[at]) << "between rows";
      }
      for (std::int64_t column = 0; column < size.columns; ++column) {
        const auto at = static_cast<std::size_t>(row * stride + column);
        const Expected sum = Sum(a, b, row, column);
        const double want = alpha * sum.value + (beta == 0 ? 0.0 : static_cast<double>(beta) * before[at]);
        ASSERT_NEAR(c[at], want, sum.tolerance(size.inner))
            << fmt::format("[{}, {}] of {}x{}x{}", row, column, size.rows, size.columns, size.inner);
      }
    }
  }
}

TEST(MultiplyByWeightTest, AddsTheBias) {
  for (int round = 0; round < 60; ++round) {
    const ProductSize size{Draw(1, 90), Draw(1, 90), Draw(1, 150)};
    const Operand<float> a(size.rows, size.inner, Draw(0, 1) == 1), b(size.inner, size.columns, Draw(0, 1) == 1);
    std::vector<float> bias(static_cast<std::size_t>(size.columns));
    std::ranges::generate(bias, [] { return static_cast<float>(Draw(-9, 9)); });
    const bool biased = Draw(0, 1) == 1;
    std::vector<float> c(static_cast<std::size_t>(size.rows * size.columns), NAN);
    MultiplyByWeight(a.matrix(), b.matrix(), biased ? bias.data() : nullptr, c.data(), size);
    for (std::int64_t row = 0; row < size.rows; ++row) {
      for (std::int64_t column = 0; column < size.columns; ++column) {
        const Expected sum = Sum(a, b, row, column);
        const double want = sum.value + (biased ? bias[static_cast<std::size_t>(column)] : 0.0F);
        ASSERT_NEAR(c[static_cast<std::size_t>(row * size.columns + column)], want, sum.tolerance(size.inner));
      }
    }
  }
}

TYPED_TEST(GemmTest, TheSameBitsEachTime) {
  const ProductSize size{130, 517, 1031};
  const Operand<TypeParam> a(size.rows, size.inner, true), b(size.inner, size.columns, false);
  std::vector<float> first(static_cast<std::size_t>(size.rows * size.columns)), again = first;
  Multiply<TypeParam>(1, a.matrix(), b.matrix(), 0, first.data(), size);
  for (int round = 0; round < 5; ++round) {
    Multiply<TypeParam>(1, a.matrix(), b.matrix(), 0, again.data(), size);
    ASSERT_EQ(first, again);
  }
}

}  // namespace
}  // namespace millrace::engine::cpu
