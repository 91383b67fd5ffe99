#include "millrace/engine/ops/cpu/coded_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "millrace/engine/quantized/code_maps.h"

namespace millrace::engine::cpu {
namespace {

constexpr int kFp8 = -1;

/// A weight of random codes, the numbers that they stand for, and rows to multiply with it.
class Codes {
 public:
  Codes(std::int64_t columns, std::int64_t inner, int block_bits)
      : columns_(columns), inner_(inner), bits_(block_bits) {
    for (float& number : map_) number = Draw();
    bytes_.resize(static_cast<std::size_t>(columns * inner));
    for (std::uint8_t& byte : bytes_) byte = static_cast<std::uint8_t>(random_());
    for (std::int64_t i = 0; i < columns * BlocksInColumn(); ++i) scales_.push_back(Draw());
    for (std::int64_t i = 0; i < columns; ++i) bias_.push_back(Draw());
  }
  bool is_nf4() const { return bits_ > 0; }
  std::int64_t BlocksInColumn() const { return is_nf4() ? (inner_ + (1 << bits_) - 1) >> bits_ : 1; }

  float NumberAt(std::int64_t column, std::int64_t k) const {
    const auto at = static_cast<std::size_t>(column * inner_ + k);
    if (!is_nf4()) {
      const float number = bits_ == kFp8 ? E4m3Map()[bytes_[at]] : static_cast<std::int8_t>(bytes_[at]);
      return number * scales_[static_cast<std::size_t>(column)];
    }
    const int code = at % 2 == 0 ? bytes_[at / 2] >> 4 : bytes_[at / 2] & 15;
    return map_[static_cast<std::size_t>(code)] *
           scales_[static_cast<std::size_t>(column * BlocksInColumn() + (k >> bits_))];
  }
  float BiasAt(std::int64_t column) const { return bias_[static_cast<std::size_t>(column)]; }

  std::vector<float> DrawRows(std::int64_t rows) {
    std::vector<float> x(static_cast<std::size_t>(rows * inner_));
    for (float& number : x) number = Draw();
    return x;
  }
  std::vector<float> Multiply(const std::vector<float>& x, bool with_bias) const {
    const std::int64_t rows = std::ssize(x) / inner_;
    std::vector<float> out(static_cast<std::size_t>(rows * columns_)), ordered(x.size());
    const float* const bias = with_bias ? bias_.data() : nullptr;
    if (is_nf4()) {
      OrderForNf4(x.data(), std::ssize(x), ordered.data());
      CodedProduct<Nf4Columns>{
          ordered.data(), {bytes_.data(), inner_ / 2, map_.data(), scales_.data(), BlocksInColumn(), bits_},
          bias,           out.data(),
          columns_,       rows,
          columns_,       inner_}
          .Run();
    } else if (bits_ == kFp8) {
      CodedProduct<Fp8Columns>{
          x.data(), {bytes_.data(), inner_, scales_.data()}, bias, out.data(), columns_, rows, columns_, inner_}
          .Run();
    } else {
      const auto* const codes = reinterpret_cast<const std::int8_t*>(bytes_.data());
      CodedProduct<Int8Columns>{x.data(), {codes, inner_, scales_.data()}, bias, out.data(), columns_, rows, columns_,
                                inner_}
          .Run();
    }
    return out;
  }

 private:
  float Draw() { return std::normal_distribution<float>()(random_); }
  std::int64_t columns_, inner_;
  int bits_;  ///< of a block of NF4; 0: int8; kFp8
  std::mt19937 random_{5};
  std::array<float, 16> map_{};
  std::vector<std::uint8_t> bytes_;
  std::vector<float> scales_, bias_;
};

struct Shape {
  std::int64_t columns, inner;
  int block_bits;
};

class CodedProductTest : public ::testing::TestWithParam<Shape> {};

TEST_P(CodedProductTest, EachElementIsItsSum) {
  const auto [columns, inner, block_bits] = GetParam();
  Codes codes(columns, inner, block_bits);
  for (const std::int64_t rows : {1, 2, 6, 7, 40, 130}) {
    const std::vector<float> x = codes.DrawRows(rows), out = codes.Multiply(x, /*with_bias=*/rows != 2);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        double sum = rows != 2 ? codes.BiasAt(column) : 0, size = 1;
        for (std::int64_t k = 0; k < inner; ++k) {
          const double term =
              static_cast<double>(x[static_cast<std::size_t>(row * inner + k)]) * codes.NumberAt(column, k);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(out[static_cast<std::size_t>(row * columns + column)], sum, 1e-6 * size)
            << row << ", " << column << " of " << rows;
      }
    }
  }
}

TEST_P(CodedProductTest, ARowHasTheSameBitsBesideOthers) {
  const auto [columns, inner, block_bits] = GetParam();
  Codes codes(columns, inner, block_bits);
  const std::vector<float> x = codes.DrawRows(131), together = codes.Multiply(x, true);
  for (std::int64_t row = 0; row < 131; ++row) {
    const std::vector<float> alone = codes.Multiply({x.begin() + row * inner, x.begin() + (row + 1) * inner}, true);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * columns)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Int8, CodedProductTest,
                         ::testing::Values(Shape{32, 512, 0}, Shape{3, 31, 0}, Shape{13, 2077, 0}, Shape{1, 1, 0}));
INSTANTIATE_TEST_SUITE_P(Fp8, CodedProductTest,
                         ::testing::Values(Shape{32, 512, kFp8}, Shape{3, 31, kFp8}, Shape{13, 2077, kFp8},
                                           Shape{1, 1, kFp8}));
INSTANTIATE_TEST_SUITE_P(Nf4, CodedProductTest,
                         ::testing::Values(Shape{32, 512, 6}, Shape{3, 64, 6}, Shape{13, 2112, 6}, Shape{5, 48, 4},
                                           Shape{7, 8192, 12}));

}  // namespace
}  // namespace millrace::engine::cpu
