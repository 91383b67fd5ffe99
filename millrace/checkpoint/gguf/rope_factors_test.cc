#include "millrace/checkpoint/gguf/rope_factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::checkpoint {
namespace {

/// The loop of convert_hf_to_gguf.py with torch's rounding: frequencies are float32.
std::vector<float> AsTheConverterWrites(const Llama3Scaling& scaling, double base, int head_dim) {
  std::vector<float> factors;
  for (int i = 0; i < head_dim; i += 2) {
    const float frequency =
        1.0F / std::pow(static_cast<float>(base), static_cast<float>(i) / static_cast<float>(head_dim));
    const float wavelength = 6.2831853F / frequency;
    const auto original = static_cast<float>(scaling.original_max_position_embeddings);
    const auto low = static_cast<float>(scaling.low_freq_factor), high = static_cast<float>(scaling.high_freq_factor);
    const auto factor = static_cast<float>(scaling.factor);
    const float smooth = (original / wavelength - low) / (high - low);
    factors.push_back(wavelength < original / high  ? 1
                      : wavelength > original / low ? factor
                                                    : 1 / ((1 - smooth) / factor + smooth));
  }
  return factors;
}

TEST(RopeFactors, PublishedModelsAreFound) {
  for (const double factor : {8.0, 32.0}) {  // Llama 3.1 and 3.2
    for (const int head_dim : {16, 64, 128}) {
      const Llama3Scaling published{.factor = factor};
      const auto factors = AsTheConverterWrites(published, 500000, head_dim);
      EXPECT_EQ(FindLlama3Scaling(factors, 500000), published) << factor << " " << head_dim;
      EXPECT_EQ(FindLlama3Scaling(RopeFactorsOf(published, 500000, head_dim), 500000), published);
    }
  }
}

TEST(RopeFactors, OtherParametersAreComputed) {
  for (const Llama3Scaling scaling :
       {Llama3Scaling{.factor = 4, .original_max_position_embeddings = 4096},
        {.factor = 16, .high_freq_factor = 8, .original_max_position_embeddings = 2048},
        {.factor = 3.5, .high_freq_factor = 2.5, .original_max_position_embeddings = 5000}}) {
    const auto found = FindLlama3Scaling(AsTheConverterWrites(scaling, 500000, 128), 500000);
    ASSERT_TRUE(found) << scaling.factor;
    EXPECT_EQ(*found, scaling);
  }
  // With another low_freq_factor, parameters that mean the same.
  const Llama3Scaling scaling{.factor = 8, .low_freq_factor = 2, .high_freq_factor = 6};
  const auto found = FindLlama3Scaling(AsTheConverterWrites(scaling, 500000, 128), 500000);
  EXPECT_EQ(found, (Llama3Scaling{.factor = 8, .high_freq_factor = 3, .original_max_position_embeddings = 4096}));
}

TEST(RopeFactors, WhatIsNoScalingOfLlama3IsNone) {
  const auto published = RopeFactorsOf({}, 500000, 128);
  EXPECT_FALSE(FindLlama3Scaling({}, 500000));
  EXPECT_FALSE(FindLlama3Scaling(std::vector<float>(64, 1), 500000));
  EXPECT_FALSE(FindLlama3Scaling(published, 10000)) << "another base";
  for (std::size_t i = 0; i < published.size(); i += 7) {
    auto other = published;
    other[i] *= 1.001F;
    EXPECT_FALSE(FindLlama3Scaling(other, 500000)) << i;
    other[i] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(FindLlama3Scaling(other, 500000)) << i;
  }
  auto infinite = published;
  infinite.back() = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(FindLlama3Scaling(infinite, 500000));
  auto backwards = published;
  std::ranges::reverse(backwards);
  EXPECT_FALSE(FindLlama3Scaling(backwards, 500000));
}

}  // namespace
}  // namespace millrace::checkpoint
