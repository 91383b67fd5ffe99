#include "millrace/engine/ops/cpu/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/engine/ops/cpu/kernels.h"

namespace millrace::engine::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Rounded(float value, std::uint32_t random) {
  return ToFloat(static_cast<Bf16>(RoundStochastically(value, random)));
}

/// Over all random bits, the mean is the value: as many of the 65,536 go away from zero as the value is above the
/// nearer number, in 65,536ths of the distance.
TEST(StochasticRounding, TheMeanIsTheValue) {
  Random random(1);
  for (int i = 0; i < 40; ++i) {
    const float value = static_cast<float>(std::ldexp(random.Uniform() - 0.5, static_cast<int>(random.Below(60)) - 30));
    double sum = 0;
    for (std::uint32_t bits = 0; bits < 65'536; ++bits) sum += Rounded(value, bits);
    EXPECT_EQ(sum / 65'536, value);
  }
}

TEST(StochasticRounding, WhatIsABfloat16Stays) {
  for (const float value : {0.0F, -0.0F, 1.0F, -3.5F, 0x1p-133F, 0x1.fep127F, kInfinity, -kInfinity}) {
    for (const std::uint32_t bits : {0U, 1U, 0x8000U, 0xffffU}) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(Rounded(value, bits)), std::bit_cast<std::uint32_t>(value));
    }
  }
}

/// Also NaNs whose payload is in the bits that are cut, and those that adding would carry over.
TEST(StochasticRounding, NansStayNans) {
  for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff80ffffU, 0xffffffffU}) {
    for (const std::uint32_t bits : {0U, 0xffffU}) {
      EXPECT_TRUE(std::isnan(Rounded(std::bit_cast<float>(nan), bits))) << nan;
    }
  }
}

TEST(StochasticRounding, NumbersOfAnElementHaveTheirOwnBits) {
  const auto bits = [](std::uint32_t element, RoundedNumber number) {
    return RoundingBits(RoundingKey(7, number), element, 0);
  };
  int equal = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const std::array each = {bits(i, RoundedNumber::kWeight), bits(i, RoundedNumber::kMoment1),
                             bits(i, RoundedNumber::kMoment2), bits(i + 1, RoundedNumber::kWeight)};
    for (std::size_t a = 0; a < each.size(); ++a) {
      for (std::size_t b = a + 1; b < each.size(); ++b) equal += each[a] == each[b] ? 1 : 0;
    }
  }
  EXPECT_LE(equal, 3) << "of 6,000 pairs, which are equal once in 65,536";
}

/// Tests the bits of neighbouring elements, of one element in many steps, and of elements that are 2^32 apart.
TEST(StochasticRounding, BitsAreUniform) {
  constexpr int kCount = 1 << 20, kBins = 256;
  const auto expect_uniform = [&](const char* what, auto bits_of) {
    std::vector<int> low(kBins), high(kBins);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const std::uint32_t bits = bits_of(i);
      ASSERT_LT(bits, 65'536U);
      ++low[bits % kBins];
      ++high[bits / kBins];
    }
    for (const std::vector<int>& bins : {low, high}) {
      double chi2 = 0;
      constexpr double kMean = static_cast<double>(kCount) / kBins;
      for (const int count : bins) chi2 += (count - kMean) * (count - kMean) / kMean;
      EXPECT_LT(chi2, 360) << what << ": of 255 degrees of freedom, a value that 1 of 100,000 exceeds";
    }
  };
  expect_uniform("elements",
                 [](std::uint32_t i) { return RoundingBits(RoundingKey(1, RoundedNumber::kWeight), i, 0); });
  expect_uniform("steps", [](std::uint32_t i) { return RoundingBits(RoundingKey(i, RoundedNumber::kWeight), 5, 0); });
  expect_uniform("far elements", [](std::uint32_t i) { return RoundingBits(0x123456789abcdef0, 5, i); });
}

/// A slice of columns, from its middle on, is rounded as the whole matrix is.
TEST(StochasticRounding, ASliceIsRoundedAsTheWholeIs) {
  constexpr std::int64_t kRows = 9, kColumns = 37, kBegin = 5, kExtent = 11, kFirst = 17;
  std::vector<float> whole(kRows * kColumns), slice(kRows * kExtent);
  Random random(3);
  for (float& value : whole) value = static_cast<float>(random.Uniform());
  for (std::int64_t i = 0; i < kRows * kExtent; ++i) {
    slice[i] = whole[i / kExtent * kColumns + kBegin + i % kExtent];
  }
  std::vector<Bf16> want(whole.size()), got(slice.size() - kFirst);
  RoundStochastically({.key = 99, .first = 0, .numbers = {}}, RoundedNumber::kMoment2, whole.data(), want.data(),
                      kRows * kColumns);
  RoundStochastically({.key = 99, .first = kFirst, .numbers = {.run = kExtent, .stride = kColumns, .offset = kBegin}},
                      RoundedNumber::kMoment2, slice.data() + kFirst, got.data(), kRows * kExtent - kFirst);
  int up = 0;
  for (std::int64_t i = kFirst; i < kRows * kExtent; ++i) {
    EXPECT_EQ(got[i - kFirst], want[i / kExtent * kColumns + kBegin + i % kExtent]) << i;
    up += ToFloat(got[i - kFirst]) > slice[i] ? 1 : 0;
  }
  EXPECT_GT(up, 20);
  EXPECT_LT(up, 62);
}

TEST(StochasticRounding, WideningIsExact) {
  std::vector<Bf16> narrow(65'536);
  for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<Bf16>(i);
  std::vector<float> wide(narrow.size());
  Widen(narrow.data(), wide.data(), static_cast<std::int64_t>(wide.size()));
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]), i << 16);
}

}  // namespace
}  // namespace millrace::engine::cpu
