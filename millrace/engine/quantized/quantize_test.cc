#include "millrace/engine/quantized/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "millrace/engine/quantized/code_maps.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine {
namespace {

std::vector<float> Draw(std::mt19937& generator, std::size_t count) {
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> numbers(count);
  std::ranges::generate(numbers, [&] { return normal(generator); });
  return numbers;
}

struct Nf4Codes {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  int At(std::size_t i) const { return i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15; }
};
Nf4Codes Quantized(const std::vector<float>& elements) {
  Nf4Codes result{std::vector<std::uint8_t>((elements.size() + 1) / 2),
                  std::vector<float>((elements.size() + kNf4Block - 1) / kNf4Block)};
  QuantizeNf4(elements, result.codes, result.scales);
  return result;
}

TEST(QuantizeNf4Test, EachElementGetsTheNearestValue) {
  std::mt19937 generator(1);
  for (const std::size_t count : {1UL, 2UL, 63UL, 64UL, 65UL, 700UL, 4096UL}) {
    const std::vector<float> x = Draw(generator, count);
    const Nf4Codes quantized = Quantized(x);
    for (std::size_t i = 0; i < count; ++i) {
      const float scale = quantized.scales[i / kNf4Block];
      const auto error = [&](float value) { return std::abs(double{x[i]} - double{value} * double{scale}); };
      const double least = error(std::ranges::min(kNf4Map, {}, error));
      EXPECT_LE(error(kNf4Map[static_cast<std::size_t>(quantized.At(i))]), least + 1e-8) << count << " " << i;
    }
  }
}

TEST(QuantizeNf4Test, TheLargestMagnitudeOfABlockIsExact) {
  std::mt19937 generator(2);
  std::vector<float> x = Draw(generator, 3 * kNf4Block);
  x[70] = -0.5F;
  const Nf4Codes quantized = Quantized(x);
  EXPECT_EQ(quantized.scales[1], 0.5F);
  EXPECT_EQ(quantized.At(70), 0);
}

TEST(QuantizeNf4Test, ATieTakesTheLowerValue) {
  std::vector<float> x(kNf4Block, 0.0F);
  x[0] = 1;
  const float midpoint = (kNf4Map[7] + kNf4Map[8]) / 2;
  x[1] = midpoint;
  x[2] = std::nextafter(midpoint, 1.0F);
  const Nf4Codes quantized = Quantized(x);
  EXPECT_EQ(quantized.At(1), 7);
  EXPECT_EQ(quantized.At(2), 8);
}

TEST(QuantizeNf4Test, ABlockOfZerosIsZero) {
  const Nf4Codes quantized = Quantized(std::vector<float>(kNf4Block, 0.0F));
  EXPECT_EQ(quantized.scales[0], 0);
  EXPECT_EQ(quantized.codes, std::vector<std::uint8_t>(kNf4Block / 2, 0x77));
}

TEST(DynamicMapTest, RisesFromItsLeastToOne) {
  const auto& map = DynamicMap();
  EXPECT_TRUE(std::ranges::is_sorted(map));
  EXPECT_EQ(map.back(), 1);
  EXPECT_EQ(map[127], 0);
  EXPECT_NEAR(map.front(), -0.9929688, 1e-6);
}

TEST(QuantizeScalesTest, CodesAreNearestAndBlocksHaveTheirOwnScale) {
  std::mt19937 generator(3);
  std::vector<float> scales = Draw(generator, 1000);
  for (float& scale : scales) scale = 0.05F + std::abs(scale);
  const QuantizedScales quantized = QuantizeScales(scales);
  ASSERT_EQ(quantized.codes.size(), scales.size());
  ASSERT_EQ(quantized.block_scales.size(), 4U);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const double most = quantized.block_scales[i / kScaleBlock], x = scales[i] - quantized.offset;
    const auto error = [&](float value) { return std::abs(x - value * most); };
    EXPECT_LE(error(DynamicMap()[quantized.codes[i]]), error(std::ranges::min(DynamicMap(), {}, error)) + 1e-8);
  }
}

/// A matrix with codes of its own.
std::shared_ptr<const QuantizedMatrix> Nf4Matrix(const std::vector<float>& elements, std::int64_t rows,
                                                 std::int64_t columns) {
  auto codes = std::make_shared<Nf4Codes>(Quantized(elements));
  const std::span<const std::uint8_t> scales(reinterpret_cast<const std::uint8_t*>(codes->scales.data()),
                                             codes->scales.size() * sizeof(float));
  return std::make_shared<QuantizedMatrix>(
      rows, columns, QuantizedMatrix::Nf4{.codes = codes->codes, .map = kNf4Map, .scales = scales, .nested = false},
      codes);
}

TEST(QuantizedMatrixTest, BoxesAreThoseOfTheWholeMatrix) {
  std::mt19937 generator(4);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(generator);
  };
  for (int round = 0; round < 50; ++round) {
    const std::int64_t rows = draw(1, 9), columns = draw(1, 150);
    const std::vector<float> x = Draw(generator, static_cast<std::size_t>(rows * columns));
    const auto matrix = Nf4Matrix(x, rows, columns);
    const Nf4Codes codes = Quantized(x);
    MatrixBox box{.row = draw(0, rows - 1), .column = draw(0, columns - 1)};
    box.rows = draw(1, rows - box.row);
    box.columns = draw(1, columns - box.column);
    const std::int64_t stride = box.columns + draw(0, 3);
    std::vector<float> out(static_cast<std::size_t>(box.rows * stride), -7.0F);
    matrix->Dequantize(box, out.data(), stride);
    for (std::int64_t row = 0; row < box.rows; ++row) {
      for (std::int64_t column = 0; column < stride; ++column) {
        const auto i = static_cast<std::size_t>((box.row + row) * columns + box.column + column);
        const float want =
            column < box.columns ? kNf4Map[static_cast<std::size_t>(codes.At(i))] * codes.scales[i / kNf4Block] : -7.0F;
        ASSERT_EQ(out[static_cast<std::size_t>(row * stride + column)], want);
      }
    }
  }
}

TEST(QuantizedMatrixTest, DoubleQuantizationChangesScalesLittle) {
  std::mt19937 generator(5);
  const std::vector<float> x = Draw(generator, 64 * 1024);
  auto codes = std::make_shared<Nf4Codes>(Quantized(x));
  auto scales = std::make_shared<QuantizedScales>(QuantizeScales(codes->scales));
  const QuantizedMatrix matrix(64, 1024,
                               QuantizedMatrix::Nf4{.codes = codes->codes,
                                                    .map = kNf4Map,
                                                    .scales = scales->codes,
                                                    .scale_map = {DynamicMap().begin(), DynamicMap().end()},
                                                    .scale_scales = scales->block_scales,
                                                    .scale_offset = scales->offset},
                               codes);
  std::vector<float> out(x.size()), plain(x.size());
  matrix.Dequantize({.rows = 64, .columns = 1024}, out.data(), 1024);
  Nf4Matrix(x, 64, 1024)->Dequantize({.rows = 64, .columns = 1024}, plain.data(), 1024);
  double difference = 0, error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(out[i] - plain[i], 2);
    error += std::pow(out[i] - x[i], 2);
    norm += std::pow(x[i], 2);
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(std::sqrt(difference / norm), 0.01);
  EXPECT_NEAR(std::sqrt(error / norm), 0.095, 0.01);  // NF4's of normal numbers in blocks of 64
}

TEST(QuantizeInt8Test, RowsAreNearToTheirNumbers) {
  std::mt19937 generator(6);
  const std::vector<float> x = Draw(generator, 257);
  auto codes = std::make_shared<std::vector<std::int8_t>>(x.size());
  const float scale = QuantizeInt8(x, *codes);
  EXPECT_EQ(scale, std::abs(std::ranges::max(x, {}, [](float value) { return std::abs(value); })));
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(codes->data()), codes->size());
  const QuantizedMatrix matrix(1, 257, QuantizedMatrix::Int8{.codes = bytes, .scales = {scale}}, codes);
  std::vector<float> out(x.size());
  matrix.Dequantize({.rows = 1, .columns = 257}, out.data(), 257);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(out[i], x[i], scale / 254 * 1.0001F);
  std::vector<std::int8_t> zeros(3, 1);
  EXPECT_EQ(QuantizeInt8(std::vector<float>(3, 0.0F), zeros), 0);
  EXPECT_EQ(zeros, std::vector<std::int8_t>(3, 0));
}

TEST(QuantizeFp8Test, RowsAreNearToTheirNumbers) {
  std::mt19937 generator(6);
  const std::vector<float> x = Draw(generator, 257);
  auto codes = std::make_shared<std::vector<std::uint8_t>>(x.size());
  const float scale = QuantizeFp8(x, *codes);
  EXPECT_EQ(scale, std::abs(std::ranges::max(x, {}, [](float value) { return std::abs(value); })) / 448);
  const QuantizedMatrix matrix(1, 257, QuantizedMatrix::Fp8{.codes = *codes, .scales = {scale}}, codes);
  std::vector<float> out(x.size());
  matrix.Dequantize({.rows = 1, .columns = 257}, out.data(), 257);
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Half of the last of three bits of mantissa, or of the least number.
    EXPECT_NEAR(out[i], x[i], std::max(std::abs(x[i]) / 16, scale * 0x1p-10F) * 1.0001F);
  }
  std::vector<std::uint8_t> zeros(3, 1);
  EXPECT_EQ(QuantizeFp8(std::vector<float>(3, 0.0F), zeros), 1);
  EXPECT_EQ(zeros, std::vector<std::uint8_t>(3, 0));
  EXPECT_EQ(E4m3Map()[0x7e], 448);
  EXPECT_EQ(E4m3Map()[0xff], -480);
}

TEST(QuantizedRowsTest, BoxesStandOneOnTheOther) {
  std::mt19937 generator(7);
  QuantizedRows rows;
  std::vector<float> want;
  for (const std::int64_t count : {3, 1, 4}) {
    const auto matrix = Nf4Matrix(Draw(generator, static_cast<std::size_t>(6 * 40)), 6, 40);
    const MatrixBox box{.row = 6 - count, .column = 5, .rows = count, .columns = 30};
    rows.Append(matrix, box);
    std::vector<float> part(static_cast<std::size_t>(count * 30));
    matrix->Dequantize(box, part.data(), 30);
    want.insert(want.end(), part.begin(), part.end());
  }
  ASSERT_EQ(rows.rows(), 8);
  for (std::int64_t first = 0; first < 8; ++first) {
    for (std::int64_t count = 1; first + count <= 8; ++count) {
      std::vector<float> out(static_cast<std::size_t>(count * 30));
      rows.Dequantize(first, count, out.data());
      EXPECT_TRUE(std::ranges::equal(out, std::span(want).subspan(static_cast<std::size_t>(first * 30), out.size())));
    }
  }
}

}  // namespace
}  // namespace millrace::engine
