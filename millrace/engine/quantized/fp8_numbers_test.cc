#include "millrace/engine/quantized/fp8_numbers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <limits>
#include <vector>

namespace millrace::engine {
namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::kE4m3, Fp8Format::kE5m2};

TEST(Fp8Rounding, HasTheNumbersOfTheFormats) {
  EXPECT_EQ(FromFp8(Fp8Format::kE4m3, 0x7e), 448);
  EXPECT_EQ(FromFp8(Fp8Format::kE4m3, 0x08), 0x1p-6F);
  EXPECT_EQ(FromFp8(Fp8Format::kE4m3, 0x01), 0x1p-9F);
  EXPECT_EQ(FromFp8(Fp8Format::kE4m3, 0xb8), -1);
  EXPECT_EQ(FromFp8(Fp8Format::kE5m2, 0x7b), 57344);
  EXPECT_EQ(FromFp8(Fp8Format::kE5m2, 0x04), 0x1p-14F);
  EXPECT_EQ(FromFp8(Fp8Format::kE5m2, 0x01), 0x1p-16F);
  EXPECT_EQ(FromFp8(Fp8Format::kE5m2, 0xbc), -1);
}

/// Every code, the numbers half-way between neighbours, and those next to these.
TEST(Fp8Rounding, TakesTheNearestAndTheEvenOfTwo) {
  for (const Fp8Format format : kFormats) {
    for (int code = 0; code <= Fp8LargestCode(format); ++code) {
      const auto low = static_cast<std::uint8_t>(code);
      const float at = FromFp8(format, low);
      EXPECT_EQ(ToFp8(format, at), code);
      EXPECT_EQ(ToFp8(format, -at), code | 0x80);
      if (code == Fp8LargestCode(format)) continue;
      const float next = FromFp8(format, static_cast<std::uint8_t>(code + 1)), middle = (at + next) / 2;
      ASSERT_LT(at, next);
      EXPECT_EQ(ToFp8(format, middle), code % 2 == 0 ? code : code + 1) << middle;
      EXPECT_EQ(ToFp8(format, std::nextafter(middle, 0.0F)), code) << middle;
      EXPECT_EQ(ToFp8(format, std::nextafter(middle, next)), code + 1) << middle;
      EXPECT_EQ(ToFp8(format, -std::nextafter(middle, next)), (code + 1) | 0x80) << middle;
    }
  }
}

TEST(Fp8Rounding, SaturatesAndKeepsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Fp8Format format : kFormats) {
    for (const float large : {1.001F * Fp8Largest(format), 2 * Fp8Largest(format), 1e38F, kInfinity}) {
      EXPECT_EQ(ToFp8(format, large), Fp8LargestCode(format)) << large;
      EXPECT_EQ(ToFp8(format, -large), Fp8LargestCode(format) | 0x80) << large;
    }
    EXPECT_EQ(ToFp8(format, std::numeric_limits<float>::quiet_NaN()), kFp8Nan);
    EXPECT_TRUE(std::isnan(FromFp8(format, kFp8Nan)));
    EXPECT_EQ(ToFp8(format, std::numeric_limits<float>::denorm_min()), 0);
  }
}

TEST(Fp8Rounding, PairsHaveTheFirstInTheLowByte) {
  EXPECT_EQ(ToFp8Pair<Fp8Format::kE4m3>(1, -448), 0xfe38);
  EXPECT_EQ(ToFp8Pair<Fp8Format::kE5m2>(-1, 2), 0x40bc);
}

TEST(Fp8Rounding, ScalesTheLargestToTheEndOfTheRange) {
  for (const Fp8Format format : kFormats) {
    for (const float largest : {0x1p-133F, 1e-30F, 3e-7F, 1.0F, 5e4F, 3e38F}) {
      const Fp8Scale scale = Fp8ScaleOf(format, largest);
      ASSERT_TRUE(std::isnormal(scale.encode) && std::isnormal(scale.decode)) << largest;
      const float back = FromFp8(format, ToFp8(format, largest * scale.encode)) * scale.decode;
      if (largest > 1e-30F / 2) {
        EXPECT_EQ(ToFp8(format, largest * scale.encode), Fp8LargestCode(format)) << largest;
        EXPECT_NEAR(back, largest, 1e-6F * largest);
      } else {
        EXPECT_LE(back, 2 * largest);
      }
    }
    EXPECT_EQ(Fp8ScaleOf(format, 0).encode, 1);
    EXPECT_EQ(Fp8ScaleOf(format, 0).decode, 1);
    // The numbers of a tensor with an infinite one have no product that is a number.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const Fp8Scale scale = Fp8ScaleOf(format, kInfinity);
    EXPECT_TRUE(std::isnan(0 * scale.decode));
    EXPECT_EQ(ToFp8(format, kInfinity * scale.encode), kFp8Nan);
    EXPECT_TRUE(std::isnan(Fp8ScaleOf(format, std::numeric_limits<float>::quiet_NaN()).decode));
  }
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
TEST(Fp8Rounding, IsThatOfTorch) {
  // In range: torch does not saturate.
  const at::Tensor exponents = at::rand({1 << 16}, at::detail::createCPUGenerator(1)) * 40 - 30;
  const at::Tensor all = at::exp2(exponents) * at::sign(at::rand({1 << 16}, at::detail::createCPUGenerator(2)) - 0.5);
  for (const auto& [format, type] :
       {std::pair{Fp8Format::kE4m3, at::kFloat8_e4m3fn}, std::pair{Fp8Format::kE5m2, at::kFloat8_e5m2}}) {
    const at::Tensor x = all.clamp(-Fp8Largest(format), Fp8Largest(format));
    const at::Tensor expected = x.to(type).to(at::kFloat);
    const auto* const values = x.data_ptr<float>();
    const auto* const rounded = expected.data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      ASSERT_EQ(FromFp8(format, ToFp8(format, values[i])), rounded[i]) << values[i];
    }
  }
}
#endif

}  // namespace
}  // namespace millrace::engine
