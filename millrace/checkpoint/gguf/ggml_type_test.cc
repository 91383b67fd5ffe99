#include "millrace/checkpoint/gguf/ggml_type.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/format/half.h"

namespace millrace::checkpoint {
namespace {

std::vector<int> Bytes(GgmlType type, const std::array<float, 32>& values) {
  Buffer blocks(BlockBytes(type));
  Quantize(type, values, blocks.span());
  std::vector<int> bytes;
  for (std::byte byte : blocks.span()) bytes.push_back(static_cast<int>(byte));
  return bytes;
}

TEST(GgmlType, EightBitsRoundHalvesAwayFromZero) {
  std::array<float, 32> values{127, 0.5F, -0.5F, 1.5F, 2.5F, -2.5F, 0.49F, -127};
  const auto bytes = Bytes(GgmlType::kQ8_0, values);
  EXPECT_EQ(bytes[0] | bytes[1] << 8, FloatToHalf(1));
  EXPECT_EQ((std::vector<int>(bytes.begin() + 2, bytes.begin() + 11)),
            (std::vector<int>{127, 1, 255, 2, 3, 256 - 3, 0, 256 - 127, 0}));
}

TEST(GgmlType, FourBitsScaleByTheLargestWithItsSign) {
  std::array<float, 32> values{};
  values[0] = -8;    // 0
  values[1] = 8;     // 16 becomes 15
  values[2] = 0.5F;  // 9
  values[16] = -0.5F;
  values[17] = -0.51F;
  values[18] = 6.4F;
  auto bytes = Bytes(GgmlType::kQ4_0, values);
  EXPECT_EQ(bytes[0] | bytes[1] << 8, FloatToHalf(1));
  EXPECT_EQ(bytes[2], 0 | 8 << 4);
  EXPECT_EQ(bytes[3], 15 | 7 << 4);
  EXPECT_EQ(bytes[4], 9 | 14 << 4);
  EXPECT_EQ(bytes[5], 8 | 8 << 4);
  values[0] = 16;  // of two that are equally large, the first one decides
  values[3] = -16;
  bytes = Bytes(GgmlType::kQ4_0, values);
  EXPECT_EQ(bytes[0] | bytes[1] << 8, FloatToHalf(-2));
  EXPECT_EQ(bytes[2] & 15, 0);
  EXPECT_EQ(bytes[5] & 15, 15);
}

TEST(GgmlType, SuperBlocksHaveScalesOfTheirParts) {
  // Part 1 of 8 has the scale 3 and the minimum 2, in units of 1 and of a half. Its first number is 5, in the high bits
  // of the first byte.
  Buffer block(BlockBytes(GgmlType::kQ4_K));
  std::ranges::fill(block.span(), std::byte{0});
  StoreLittle(block.data(), FloatToHalf(1));
  StoreLittle(block.data() + 2, FloatToHalf(0.5F));
  block.span()[4 + 1] = std::byte{3};
  block.span()[4 + 4 + 1] = std::byte{2};
  block.span()[16] = std::byte{5 << 4};
  std::array<float, 256> values{};
  Dequantize(GgmlType::kQ4_K, block, values);
  EXPECT_EQ(values[32], 1 * 3 * 5 - 0.5F * 2);
  EXPECT_EQ(values[33], -0.5F * 2);
  EXPECT_EQ(values[0], 0);
}

TEST(GgmlType, BlocksThatAreOnlyReadAreNotWritten) {
  EXPECT_TRUE(CanWrite(GgmlType::kQ4_0));
  EXPECT_FALSE(CanWrite(GgmlType::kQ6_K));
  EXPECT_FALSE(ParseGgmlType("q6_K"));
  EXPECT_EQ(GgmlTypeOf(14).value(), GgmlType::kQ6_K);
  EXPECT_FALSE(GgmlTypeOf(9));
}

TEST(GgmlType, ZerosAndNumbersThatAreNoneAreBlocksToo) {
  EXPECT_EQ(Bytes(GgmlType::kQ4_0, {})[1], 0x80) << "ggml's scale is -0";
  EXPECT_EQ(Bytes(GgmlType::kQ4_0, {})[2], 0x88);
  EXPECT_EQ(Bytes(GgmlType::kQ8_0, {}), std::vector<int>(34, 0));
  for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf(""), 1e-45F, 3e38F}) {
    for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0}) {
      EXPECT_EQ(Bytes(type, {odd, 1, -1}).size(), BlockBytes(type));
    }
  }
}

TEST(GgmlType, ValuesComeBackToHalfAStep) {
  Random random(7);
  std::vector<float> values(32 * 50), again(values.size());
  for (float& value : values) value = static_cast<float>(random.Uniform() * 2 - 1);
  for (const auto& [type, most] : {std::pair{GgmlType::kF32, 0.0},
                                   {GgmlType::kF16, 3e-4},
                                   {GgmlType::kBF16, 2e-3},
                                   {GgmlType::kQ8_0, 0.0045},
                                   {GgmlType::kQ4_0, 0.13}}) {
    Buffer blocks(values.size() / BlockElements(type) * BlockBytes(type));
    Quantize(type, values, blocks.span());
    Dequantize(type, blocks, again);
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = std::max<double>(largest, std::fabs(values[i] - again[i]));
    EXPECT_LE(largest, most) << GgmlTypeName(type);
    if (type != GgmlType::kF32) {
      EXPECT_GT(largest, most / 4) << GgmlTypeName(type);
    }
    // What was decoded is stored as it is.
    Buffer twice(blocks.size());
    Quantize(type, again, twice.span());
    if (BlockElements(type) == 1) {
      EXPECT_EQ(AsText(twice), AsText(blocks)) << GgmlTypeName(type);
    }
  }
}

}  // namespace
}  // namespace millrace::checkpoint
