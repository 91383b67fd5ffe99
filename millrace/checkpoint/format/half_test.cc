#include "millrace/checkpoint/format/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace millrace::checkpoint {
namespace {

struct Format {
  std::function<float(std::uint16_t)> to_float;
  std::function<std::uint16_t(float)> from_float;
  std::uint16_t infinity;
};
const Format kFormats[] = {{HalfToFloat, FloatToHalf, 0x7c00}, {Bf16ToFloat, FloatToBf16, 0x7f80}};

TEST(Half, EveryValueIsReadBack) {
  for (const Format& format : kFormats) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const float value = format.to_float(static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(format.to_float(format.from_float(value)))) << bits;
      } else {
        ASSERT_EQ(format.from_float(value), bits);
      }
    }
  }
}

/// All pairs of neighbours: below the middle the smaller one, above it the larger one, in the middle the even one.
TEST(Half, OthersGoToTheNearest) {
  for (const Format& format : kFormats) {
    for (std::uint16_t bits = 0; bits + 1 < format.infinity; ++bits) {
      const auto next = static_cast<std::uint16_t>(bits + 1);
      const float middle = format.to_float(bits) + (format.to_float(next) - format.to_float(bits)) / 2;
      ASSERT_EQ(format.from_float(middle), bits % 2 == 0 ? bits : next);
      ASSERT_EQ(format.from_float(std::nextafter(middle, 0.0F)), bits);
      ASSERT_EQ(format.from_float(-std::nextafter(middle, std::numeric_limits<float>::max())), next | 0x8000);
    }
  }
}

TEST(Half, TooLargeValuesAreInfinite) {
  EXPECT_EQ(FloatToHalf(65'519), 0x7bff);
  EXPECT_EQ(FloatToHalf(65'520), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30F), 0xfc00);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(HalfToFloat(0x3c00), 1);
  EXPECT_EQ(HalfToFloat(0xc000), -2);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(Bf16ToFloat(0x3f80), 1);
}

}  // namespace
}  // namespace millrace::checkpoint
